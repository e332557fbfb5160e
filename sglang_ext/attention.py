"""Attention over a RowPlan: encoder rows write and read the KV pool, decoder rows only read it.

Decode: one call of the attention backend for both query sets, joined on the head dimension (kernels/paired.py).
Extend: the encoder rows as upstream runs them, then the decoder rows as queries over what is now in the pool.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from sglang.srt.layers.radix_attention import RadixAttention
from sglang.srt.model_executor.forward_context import get_attn_backend

from descant.kernels.paired import join_heads, split_heads
from descant.sglang_ext.rows import RowPlan


class PairedRows:
    """One forward's RowPlan as the tensors that its layers index with.

    tokens [m]: for each decoder row, its token, which is also its encoder row.
    answers [B]: at decode, the row that answers each request: its decoder row, or its encoder row if it has no adapter.
    paired [m]: at decode, the requests that have a decoder row.
    suffixes: in extend, a view of the batch in which each adapter's request has only its decoder rows as new tokens.
    """

    def __init__(self, plan: RowPlan, forward_batch: Any, device: torch.device) -> None:
        self.plan = plan
        self.tokens = torch.tensor(plan.decoder_tokens, dtype=torch.int64, device=device)
        if forward_batch.forward_mode.is_decode():
            self.paired = self.tokens  # one token a request
            self.answers = torch.arange(plan.encoder_rows, device=device)
            self.answers[self.paired] = torch.arange(plan.encoder_rows, plan.total_rows, device=device)
        else:
            self.suffixes = _suffixes(plan, forward_batch, device)
            self.one_each = max(plan.decoder_counts) == 1


def _suffixes(plan: RowPlan, forward_batch: Any, device: torch.device) -> Any:
    """The extend batch of the decoder rows alone: request i's last `decoder_counts[i]` tokens, the rest its prefix."""
    requests = [i for i, count in enumerate(plan.decoder_counts) if count]
    index = torch.tensor(requests, dtype=torch.int64, device=device)
    counts = torch.tensor([plan.decoder_counts[i] for i in requests], dtype=torch.int32, device=device)
    view = copy.copy(forward_batch)
    view.batch_size = len(requests)
    view.req_pool_indices = forward_batch.req_pool_indices[index]
    view.seq_lens = forward_batch.seq_lens[index]
    view.extend_seq_lens = counts
    view.extend_prefix_lens = view.seq_lens - counts
    view.out_cache_loc = None  # decoder rows write nothing
    return view


class PairedAttention:
    """What takes the place of one layer's `RadixAttention.forward`.

    A batch without PairedRows goes to the layer's own forward, untouched.
    """

    def __init__(self, layer: RadixAttention) -> None:
        self.layer = layer
        self.unpaired = layer.forward
        # Not a submodule: it has no weights, and the model's module names must stay upstream's.
        self.joined = RadixAttention(
            2 * layer.tp_q_head_num, layer.head_dim, layer.scaling, layer.tp_k_head_num, layer.layer_id
        )
        for scale in ("k_scale", "v_scale", "k_scale_float", "v_scale_float"):
            setattr(self.joined, scale, getattr(layer, scale))

    def __call__(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        forward_batch: Any,
        save_kv_cache: bool = True,
        **kwargs: Any,
    ) -> torch.Tensor:
        """q [rows, H * d], k and v [rows, Hkv * d] -> [rows, H * d], rows as the plan lays them out."""
        rows: PairedRows | None = getattr(forward_batch, "paired_rows", None)
        if rows is None:
            return self.unpaired(q, k, v, forward_batch, save_kv_cache, **kwargs)
        layer, n = self.layer, rows.plan.encoder_rows
        k = k[:n].view(-1, layer.tp_k_head_num, layer.head_dim)
        v = v[:n].view(-1, layer.tp_k_head_num, layer.head_dim)
        if forward_batch.forward_mode.is_decode():
            return self._decode(q, k, v, forward_batch, rows, save_kv_cache)
        return self._extend(q, k, v, forward_batch, rows, save_kv_cache)

    def _decode(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, forward_batch: Any, rows: PairedRows, save: bool
    ) -> torch.Tensor:
        layer, n = self.layer, rows.plan.encoder_rows
        heads = q.view(-1, layer.tp_q_head_num, layer.head_dim)
        joined = join_heads(heads[:n], heads[rows.answers], layer.tp_k_head_num)
        out = get_attn_backend().forward_decode(joined.flatten(1), k, v, self.joined, forward_batch, save)
        encoder, answer = split_heads(out.view_as(joined), layer.tp_k_head_num)
        return torch.cat([encoder, answer[rows.paired]]).flatten(1)

    def _extend(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, forward_batch: Any, rows: PairedRows, save: bool
    ) -> torch.Tensor:
        backend, n = get_attn_backend(), rows.plan.encoder_rows
        encoder = backend.forward_extend(q[:n], k, v, self.layer, forward_batch, save)
        # One query a request, as nearly always, is decode's shape, and the cheaper call.
        read = backend.forward_decode if rows.one_each else backend.forward_extend
        decoder = read(q[n:], None, None, self.layer, rows.suffixes, False)
        return torch.cat([encoder, decoder])
