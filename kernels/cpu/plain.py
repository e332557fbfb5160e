"""What each operator computes, in plain torch, float32 inside. The definition, and the fallback without a compiler."""

from __future__ import annotations

import torch
import torch.nn.functional as F

COMPILED = False


def linear(
    x: torch.Tensor,
    w: torch.Tensor,
    bias: torch.Tensor | None,
    a: torch.Tensor | None,
    b: torch.Tensor | None,
    slots: torch.Tensor | None,
    ranks: torch.Tensor | None,
    scalings: torch.Tensor | None,
    ends: list[int],
) -> torch.Tensor:
    """x w^T + bias, with each row's low-rank update added: [rows, in] -> [rows, out].

    Args:
        x: [rows, in]; w: [out, in]; bias: [out]; all of one dtype.
        a, b: the adapters' factors, [adapters, stacks * most, in] and [adapters, out, most]; of an adapter of rank r
            the first stacks * r rows of `a` and r columns of `b` count. None, like what follows, without adapters.
        slots: [rows] int32, the adapter of each row. ranks, scalings: [adapters] int32, float32; rank 0 adds nothing.
        ends: the outputs of stacked projection s are ends[s - 1] to ends[s].
    """
    y = F.linear(x, w, bias)
    if slots is None:
        return y
    assert a is not None
    assert b is not None
    assert ranks is not None
    assert scalings is not None
    for slot in slots.unique().tolist():
        if (rank := int(ranks[slot])) == 0:
            continue
        rows = (slots == slot).nonzero().flatten()
        hidden = F.linear(x[rows], a[slot, : len(ends) * rank]) * scalings[slot].to(x.dtype)
        first = 0
        for stack, last in enumerate(ends):
            part = F.linear(hidden[:, stack * rank : (stack + 1) * rank], b[slot, first:last, :rank])
            y[rows, first:last] += part
            first = last
    return y


def attention(
    q: torch.Tensor,
    k: torch.Tensor | None,
    v: torch.Tensor | None,
    slots: torch.Tensor | None,
    keys: torch.Tensor,
    values: torch.Tensor,
    tables: torch.Tensor,
    requests: torch.Tensor,
    lengths: torch.Tensor,
    counts: torch.Tensor,
    copies: int,
    scaling: float,
) -> torch.Tensor:
    """Causal attention of each request's new tokens over its keys and values in the pool: [rows, H, d] -> same.

    Args:
        q: [rows, H, d], the requests one behind the other, in token order, `copies` rows a token.
        k, v: [rows, Hkv, d], the keys and values of q's rows: the first row of each token is written into the pool, at
            slots [rows / copies], before anything is read. None, all three, where the pool has them.
        keys, values: [pool, Hkv, d]; q's dtype.
        tables: [tables, longest] int32, the slots of each table's tokens in order.
        requests, lengths, counts: [B] integers: the request's table, its tokens so far, how many of them are new.
    """
    if k is not None and v is not None:
        keys[slots], values[slots] = k[::copies], v[::copies]
    out = torch.empty_like(q)
    row = 0
    for request, length, count in zip(requests.tolist(), lengths.tolist(), counts.tolist(), strict=True):
        seen = tables[request, :length].long()
        mask = None
        if count > 1:  # token i of the new ones sees all but the count - 1 - i after it
            places = torch.arange(length - count, length, device=q.device).repeat_interleave(copies)
            mask = torch.arange(length, device=q.device) <= places[:, None]
        rows = slice(row, row + count * copies)
        out[rows] = F.scaled_dot_product_attention(
            q[rows].movedim(1, 0)[None],
            keys[seen].movedim(1, 0)[None],
            values[seen].movedim(1, 0)[None],
            attn_mask=mask,
            scale=scaling,
            enable_gqa=q.shape[1] != keys.shape[1],
        )[0].movedim(0, 1)
        row += count * copies
    return out


def rms_norm(x: torch.Tensor, residual: torch.Tensor | None, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """x / sqrt(mean(x^2) + eps) * weight over the last dimension; with a residual, x + residual is normalised instead,
    and is what `residual` holds afterwards.
    """
    wide = x.float()
    if residual is not None:
        wide = wide + residual.float()
        residual.copy_(wide)
    return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps) * weight.float()).to(x.dtype)


def silu_mul(x: torch.Tensor) -> torch.Tensor:
    """silu(x[..., :half]) * x[..., half:]."""
    gate, up = x.float().chunk(2, dim=-1)
    return (F.silu(gate) * up).to(x.dtype)


def rotate_(x: torch.Tensor, positions: torch.Tensor, cos_sin: torch.Tensor, head_dim: int, neox: bool) -> None:
    """Rotary position embedding of x [rows, H * head_dim], in place.

    Args:
        positions: [rows] integers.
        cos_sin: [positions, rotary], cosines before sines; the first `rotary` dimensions of a head turn.
        neox: dimension i turns with i + rotary / 2; otherwise 2 i with 2 i + 1.
    """
    cos, sin = cos_sin[positions].float()[:, None].chunk(2, dim=-1)
    half = cos.shape[-1]
    heads = x.unflatten(-1, (-1, head_dim))
    first, second = (
        (heads[..., :half], heads[..., half : 2 * half])
        if neox
        else (heads[..., 0 : 2 * half : 2], heads[..., 1 : 2 * half : 2])
    )
    a, b = first.float(), second.float()
    turned = a * cos - b * sin, b * cos + a * sin  # both before either is written: a and b may be x itself
    first.copy_(turned[0])
    second.copy_(turned[1])
