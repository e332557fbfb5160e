"""Joined queries: one grouped-query attention call gives what two give, to float32's rounding."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import scaled_dot_product_attention

from descant.kernels.paired import join_rows, split_rows

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
    rows = torch.randn(2 * batch, kv_heads * group, dim, generator=generator)
    k, v = (torch.randn(batch, length, kv_heads, dim, generator=generator) for _ in range(2))
    together = split_rows(_attend(join_rows(rows, kv_heads), k, v), kv_heads)
    for side in (0, 1):  # encoder rows, decoder rows
        assert (together[side::2] - _attend(rows[side::2], k, v)).abs().max() < TOLERANCE


def test_each_group_holds_its_encoder_heads_and_then_its_decoder_heads() -> None:
    rows = torch.tensor([[1, 2, 3, 4], [-1, -2, -3, -4]]).unsqueeze(-1)  # one request, four heads
    assert join_rows(rows, kv_heads=2).flatten().tolist() == [1, 2, -1, -2, 3, 4, -3, -4]


def test_split_undoes_join() -> None:
    rows = torch.arange(96.0).view(4, 6, 4)
    assert torch.equal(split_rows(join_rows(rows, kv_heads=3), kv_heads=3), rows)


def test_shapes_that_cannot_be_joined_are_refused() -> None:
    with pytest.raises(ValueError, match="3 rows are no pairs"):
        join_rows(torch.zeros(3, 4, 2), 2)
    with pytest.raises(ValueError, match="cannot be grouped over 3"):
        join_rows(torch.zeros(2, 4, 2), 3)
