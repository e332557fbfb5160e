"""Paired decode on the CPU against the definition, float32 to 1e-5 and bfloat16 to 1 part in 64."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from descant.kernels.paired import PairedShape, paired_decode

CPU = torch.device("cpu")


@settings(deadline=None, max_examples=30, derandomize=True)
@given(
    kv_heads=st.integers(1, 3),
    group=st.sampled_from([1, 2, 3, 5, 7, 12]),
    dim=st.sampled_from([16, 64, 80, 128]),
    lengths=st.lists(st.sampled_from([1, 2, 63, 64, 65, 300]), min_size=1, max_size=4),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
    slot_dtype=st.sampled_from([torch.int32, torch.int64]),
    spare=st.integers(0, 3),
)
def test_the_cpu_computes_the_definition(kv_heads, group, dim, lengths, dtype, slot_dtype, spare) -> None:
    torch.manual_seed(len(lengths))
    shape = PairedShape(2 * group * kv_heads, kv_heads, dim, dim**-0.5, dtype)
    starts = torch.tensor([0, *lengths], dtype=torch.int32).cumsum(0).int()
    slots = torch.randperm(sum(lengths) + 9)[: sum(lengths) + spare].to(slot_dtype)  # a buffer may be longer
    keys, values = torch.randn(2, sum(lengths) + 9, kv_heads, dim).to(dtype)
    queries = torch.randn(len(lengths), shape.query_heads, dim).to(dtype)
    results = []
    for name in ("reference", "torch_cpu"):
        decode = paired_decode(name, shape, CPU)
        decode.plan(starts, slots)
        results.append(decode.run(queries, keys, values).float())
    tolerance = 1e-5 if dtype == torch.float32 else 1 / 64
    torch.testing.assert_close(results[1], results[0], rtol=tolerance, atol=tolerance)


def test_what_cannot_be_served_is_refused_in_a_sentence() -> None:
    shape = PairedShape(4, 2, 64, 0.125, torch.float32)
    with pytest.raises(ValueError, match="not on cuda; choose triton or flashinfer"):
        paired_decode("torch_cpu", shape, torch.device("cuda"))
    with pytest.raises(ValueError, match=r"not in torch.float16; choose reference"):
        paired_decode("torch_cpu", PairedShape(4, 2, 64, 0.125, torch.float16), CPU)
    with pytest.raises(ValueError, match="has no implementation 'cuda'; choose one of reference, torch_cpu"):
        paired_decode("cuda", shape, CPU)
