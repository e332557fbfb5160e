"""Paired decode on a GPU: every installed implementation against the definition, eagerly and in a CUDA graph.

Needs PyTorch, Triton and pytest only. Every slot that no request reads holds NaN.
"""

from __future__ import annotations

import itertools

import pytest
import torch
from decode_step import Step

from descant.kernels.paired import PairedShape, installed, paired_decode
from descant.kernels.paired.shapes import DTYPES, MODELS, Model

CUDA = torch.device("cuda")
LENGTHS = (1, 64, 4097, 63, 700)
# Of an output, absolute below 1 and relative above: float32 without TF32, and about four units in the last place.
TOLERANCE = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}


def _step(shape: PairedShape, lengths: tuple[int, ...], seed: int = 0) -> Step:
    """Random queries and KV; the requests' slots are scattered over a pool that has 100 more."""
    generator = torch.Generator(CUDA).manual_seed(seed)
    total = sum(lengths)
    slots = torch.randperm(total + 100, generator=generator, device=CUDA)[:total]
    pool = torch.full((2, total + 100, shape.kv_heads, shape.head_dim), float("nan"), device=CUDA)
    pool[:, slots] = torch.randn(2, total, shape.kv_heads, shape.head_dim, generator=generator, device=CUDA)
    queries = torch.randn(len(lengths), shape.query_heads, shape.head_dim, generator=generator, device=CUDA)
    starts = torch.tensor([0, *itertools.accumulate(lengths)], dtype=torch.int32, device=CUDA)
    keys, values = pool.to(shape.dtype)
    return Step(queries.to(shape.dtype), keys, values, starts, slots)


def _check(shape: PairedShape, step: Step, out: torch.Tensor) -> None:
    reference = paired_decode("reference", shape, CUDA)
    reference.plan(step.slot_starts, step.slots)
    expected = reference.run(step.queries.float(), step.keys, step.values)  # not rounded to the shape's data type
    error = (out.float() - expected).abs() / expected.abs().clamp(min=1)
    assert out.dtype == shape.dtype
    assert error.max() < TOLERANCE[shape.dtype]  # not so if there is a NaN


def _refused(name: str, shape: PairedShape) -> bool:
    """Whether an implementation says that it does not serve a shape."""
    return name == "flashinfer" and (shape.dtype == torch.float32 or shape.head_dim not in (64, 128, 256))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
@pytest.mark.parametrize("name", installed())
def test_it_is_the_definition(name: str, model: Model, dtype: torch.dtype) -> None:
    for shape in (model.joined(dtype), model.single(dtype)):
        if _refused(name, shape):
            with pytest.raises(ValueError, match="triton"):
                paired_decode(name, shape, CUDA)
            continue
        step = _step(shape, LENGTHS)
        implementation = paired_decode(name, shape, CUDA)
        implementation.plan(step.slot_starts, step.slots)
        _check(shape, step, implementation.run(step.queries, step.keys, step.values))


@pytest.mark.parametrize("group", [1, 3, 5, 7, 9, 12, 15, 20, 24, 33, 40])
def test_any_group_over_several_kv_heads(group: int) -> None:
    for name in installed():
        shape = PairedShape(3 * group, 3, 128, 128**-0.5, torch.float16)
        step = _step(shape, LENGTHS)
        implementation = paired_decode(name, shape, CUDA)
        implementation.plan(step.slot_starts, step.slots.int())
        _check(shape, step, implementation.run(step.queries, step.keys, step.values))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", installed())
def test_a_cuda_graph_replays_it(name: str, dtype: torch.dtype) -> None:
    """Captured once, replayed over other queries, keys and values in the same buffers."""
    shape = MODELS[0].joined(dtype)
    if _refused(name, shape):
        return  # test_it_is_the_definition checks the refusal
    step = _step(shape, LENGTHS)
    implementation = paired_decode(name, shape, CUDA)
    implementation.plan(step.slot_starts, step.slots)
    implementation.run(step.queries, step.keys, step.values)  # compiles
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = implementation.run(step.queries, step.keys, step.values)
    for factor in (1.0, -0.5):
        for tensor in (step.queries, step.keys, step.values):
            tensor.mul_(factor)
        graph.replay()
        _check(shape, step, out)


def test_a_triton_graph_follows_its_slot_table() -> None:
    """One capture serves every set of lengths: the slot table is read on the device."""
    shape = MODELS[0].joined(torch.bfloat16)
    steps = [_step(shape, lengths, seed) for seed, lengths in enumerate([(5, 6, 7), (4096, 1, 100), (1, 2000, 1)])]
    static = Step(
        torch.zeros_like(steps[0].queries),
        torch.full((5000, 8, 128), float("nan"), dtype=torch.bfloat16, device=CUDA),
        torch.full((5000, 8, 128), float("nan"), dtype=torch.bfloat16, device=CUDA),
        torch.tensor([0, 1, 2, 3], dtype=torch.int32, device=CUDA),
        torch.zeros(5000, dtype=torch.int64, device=CUDA),
    )
    implementation = paired_decode("triton", shape, CUDA)
    implementation.plan(static.slot_starts, static.slots)
    implementation.run(static.queries, static.keys, static.values)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = implementation.run(static.queries, static.keys, static.values)
    for step in steps:
        static.queries.copy_(step.queries)
        static.slot_starts.copy_(step.slot_starts)
        static.slots[: len(step.slots)] = step.slots
        static.keys[: len(step.keys)] = step.keys
        static.values[: len(step.values)] = step.values
        graph.replay()
        _check(shape, step, out)


def test_a_pool_beyond_32_bit_offsets() -> None:
    """4.6 GB of one layer's KV, read at its end: element offsets above 2 ** 31."""
    shape = MODELS[0].joined(torch.bfloat16)
    step = _step(shape, (300, 20))
    pool = torch.empty(2_250_000, 8, 128, dtype=torch.bfloat16, device=CUDA)
    slots = len(pool) - 1 - step.slots
    pool[slots] = step.keys[step.slots]
    far = Step(step.queries, pool, pool, step.slot_starts, slots)
    implementation = paired_decode("triton", shape, CUDA)
    implementation.plan(far.slot_starts, far.slots)
    _check(shape, far, implementation.run(far.queries, far.keys, far.values))
