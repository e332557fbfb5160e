"""Joined queries: one grouped-query attention call gives what two give, to float32's rounding."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import scaled_dot_product_attention

from descant.kernels.paired import join_heads, split_heads

TOLERANCE = 1e-5  # float32, d <= 64


def _attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """q [B, H, d], k and v [B, L, Hkv, d] -> [B, H, d]; query head h reads KV head h // (H / Hkv)."""
    group = q.shape[1] // k.shape[2]
    k, v = (t.transpose(1, 2).repeat_interleave(group, dim=1) for t in (k, v))
    return scaled_dot_product_attention(q.unsqueeze(2), k, v).squeeze(2)


@settings(deadline=None, max_examples=30)
@given(st.integers(1, 3), st.integers(1, 4), st.integers(1, 5), st.sampled_from([4, 16, 64]), st.integers(1, 20))
def test_one_call_over_joined_heads_is_two_calls(batch: int, kv_heads: int, group: int, dim: int, length: int) -> None:
    generator = torch.Generator().manual_seed(batch * 1000 + kv_heads * 100 + group * 10 + length)
    encoder, decoder = (torch.randn(batch, kv_heads * group, dim, generator=generator) for _ in range(2))
    k, v = (torch.randn(batch, length, kv_heads, dim, generator=generator) for _ in range(2))
    together = split_heads(_attend(join_heads(encoder, decoder, kv_heads), k, v), kv_heads)
    for joined, alone in zip(together, (encoder, decoder), strict=True):
        assert (joined - _attend(alone, k, v)).abs().max() < TOLERANCE


def test_split_undoes_join() -> None:
    encoder, decoder = torch.arange(24.0).view(1, 6, 4), -torch.arange(24.0).view(1, 6, 4)
    back = split_heads(join_heads(encoder, decoder, kv_heads=3), kv_heads=3)
    assert torch.equal(back[0], encoder)
    assert torch.equal(back[1], decoder)


def test_shapes_that_cannot_be_joined_are_refused() -> None:
    with pytest.raises(ValueError, match="differ"):
        join_heads(torch.zeros(1, 4, 2), torch.zeros(1, 2, 2), 2)
    with pytest.raises(ValueError, match="cannot be grouped over 3"):
        join_heads(torch.zeros(1, 4, 2), torch.zeros(1, 4, 2), 3)
