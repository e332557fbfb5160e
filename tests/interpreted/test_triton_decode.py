"""The Triton kernels' numbers on the CPU, in Triton's interpreter, against the definition of paired decode.

Only in a process that has TRITON_INTERPRET=1 (`tests/test_paired_triton.py` starts it). float32 to 1e-5, float16 to
2e-3; bfloat16 is wrong in the interpreter itself and is tested on hardware. Every slot that no request reads holds NaN.
"""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from decode_step import Step
from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st
from torch.nn.functional import scaled_dot_product_attention

from descant.kernels.paired import PairedShape, join_rows, paired_decode, split_rows
from descant.kernels.paired.triton import Partials, TritonDecode, decode

CPU = torch.device("cpu")
TOLERANCE = {torch.float32: 1e-5, torch.float16: 2e-3}
TILE = {torch.float32: 16, torch.float16: 64}  # the kernel's tokens a step, at the head dims used here

# The interpreter is too slow to shrink a failing case in.
SETTINGS = settings(deadline=None, derandomize=True, max_examples=10, phases=(Phase.explicit, Phase.generate))


@dataclass(frozen=True)
class Case:
    """One decode step; `programs` stands for the size of the device and so for the number of splits."""

    kv_heads: int
    group: int
    head_dim: int
    lengths: tuple[int, ...]
    page: int = 1
    slot_type: torch.dtype = torch.int32
    programs: int = 16


def _step(case: Case, dtype: torch.dtype) -> Step:
    generator = torch.Generator().manual_seed(sum(case.lengths) * 31 + case.kv_heads * case.group * case.head_dim)
    pages = [-(-length // case.page) for length in case.lengths]
    # Three pages are no one's, the first among them: slot 0 is what a masked load of a slot gives.
    order = 1 + torch.randperm(sum(pages) + 2, generator=generator)
    slots, used = [], 0
    for count, length in zip(pages, case.lengths, strict=True):
        first = order[used : used + count, None] * case.page
        slots.append((first + torch.arange(case.page)).flatten()[:length])
        used += count
    read = torch.cat(slots)
    pool = torch.full((2, (len(order) + 1) * case.page, case.kv_heads, case.head_dim), float("nan"))
    pool[:, read] = torch.randn(2, len(read), case.kv_heads, case.head_dim, generator=generator)
    queries = torch.randn(len(slots), case.kv_heads * case.group, case.head_dim, generator=generator)
    starts = torch.tensor([0, *case.lengths]).cumsum(0).int()
    keys, values = pool.to(dtype)
    return Step(queries.to(dtype), keys, values, starts, read.to(case.slot_type))


def _shape(case: Case, dtype: torch.dtype) -> PairedShape:
    return PairedShape(case.kv_heads * case.group, case.kv_heads, case.head_dim, case.head_dim**-0.5, dtype)


def _error(case: Case, dtype: torch.dtype, out: torch.Tensor, step: Step) -> float:
    """The largest difference from the definition; NaN if there is one."""
    reference = paired_decode("reference", _shape(case, dtype), CPU)
    reference.plan(step.slot_starts, step.slots)
    return float((out.float() - reference.run(step.queries, step.keys, step.values).float()).abs().max())


def _decoded(case: Case, dtype: torch.dtype, step: Step) -> torch.Tensor:
    partials = Partials.allocate(_shape(case, dtype), len(case.lengths), CPU, programs=case.programs)
    partials.out.fill_(float("nan"))  # a split that was not written must not be read
    partials.lse.fill_(float("nan"))
    return decode(step.queries, step.keys, step.values, step.slot_starts, step.slots, case.head_dim**-0.5, partials)


def _cases(tile: int, dims: tuple[int, ...]) -> st.SearchStrategy[Case]:
    """Lengths around the kernel's steps and splits, ragged; groups that fill no tile, one, and several."""
    lengths = st.sampled_from([1, 2, tile - 1, tile, tile + 1, 2 * tile, 3 * tile + 1])
    return st.builds(
        Case,
        kv_heads=st.integers(1, 3),
        group=st.sampled_from([1, 2, 3, 5, 7, 8, 9, 12, 15, 16, 20]),
        head_dim=st.sampled_from(dims),
        lengths=st.lists(lengths, min_size=1, max_size=3).map(tuple),
        page=st.sampled_from([1, 16, 64]),
        slot_type=st.sampled_from([torch.int32, torch.int64]),
        programs=st.sampled_from([1, 8, 64]),
    )


@SETTINGS
@example(Case(kv_heads=2, group=20, head_dim=64, lengths=(40, 1, 17)))  # SGLang's own kernel is wrong here
@example(Case(kv_heads=1, group=40, head_dim=64, lengths=(33,)))  # two tiles of 32
@example(Case(kv_heads=1, group=2, head_dim=64, lengths=(16 * 21,), programs=999))  # more splits than a tile of them
@given(_cases(TILE[torch.float32], (64, 80, 96, 128, 256)))
def test_float32_is_the_definition(case: Case) -> None:
    step = _step(case, torch.float32)
    assert _error(case, torch.float32, _decoded(case, torch.float32, step), step) < TOLERANCE[torch.float32]


@SETTINGS
@example(Case(kv_heads=2, group=20, head_dim=128, lengths=(300, 1, 65)))
@given(_cases(TILE[torch.float16], (64, 80, 128)))
def test_float16_is_the_definition(case: Case) -> None:
    step = _step(case, torch.float16)
    assert _error(case, torch.float16, _decoded(case, torch.float16, step), step) < TOLERANCE[torch.float16]


@pytest.mark.parametrize("length", [5, 16, 37])
def test_what_other_slots_hold_never_leaks(length: int) -> None:
    """The same bits, whether the slots that no request reads hold zeros, infinities or NaNs."""
    case = Case(kv_heads=2, group=4, head_dim=64, lengths=(length, 1), page=16)
    outs = []
    for filling in (0.0, float("inf"), float("nan")):
        step = _step(case, torch.float32)
        for pool in (step.keys, step.values):
            pool[pool.isnan()] = filling
        outs.append(_decoded(case, torch.float32, step))
    assert outs[0].isfinite().all()
    assert torch.equal(outs[0], outs[1])
    assert torch.equal(outs[0], outs[2])


def test_joined_heads_are_two_attentions() -> None:
    """Encoder and decoder queries through join, one call and split, against PyTorch's attention of each alone."""
    case = Case(kv_heads=2, group=10, head_dim=64, lengths=(23, 40))
    step = _step(case, torch.float32)
    encoder, decoder = step.queries, step.queries.flip(0, 2) * 1.5
    model = TritonDecode(PairedShape(40, 2, 64, 64**-0.5, torch.float32), CPU)
    model.plan(step.slot_starts, step.slots)
    rows = torch.stack([encoder, decoder], dim=1).flatten(0, 1)
    both = split_rows(model.run(join_rows(rows, 2), step.keys, step.values), 2)
    for queries, out in ((encoder, both[0::2]), (decoder, both[1::2])):
        for request, slots in enumerate((step.slots[:23], step.slots[23:])):
            k, v = (pool[slots.long()].transpose(0, 1).repeat_interleave(10, 0) for pool in (step.keys, step.values))
            expected = scaled_dot_product_attention(queries[request, :, None], k, v)[:, 0]
            assert (out[request] - expected).abs().max() < TOLERANCE[torch.float32]


def test_a_pool_may_be_a_view() -> None:
    """Keys and values interleaved in one buffer, each with strides of its own; the output where it was asked for."""
    case = Case(kv_heads=3, group=4, head_dim=64, lengths=(20, 3))
    step = _step(case, torch.float32)
    buffer = torch.full((len(step.keys), 3, 2, 80), float("nan"))
    keys, values = buffer[:, :, 0, :64], buffer[:, :, 1, 16:]
    keys.copy_(step.keys)
    values.copy_(step.values)
    partials = Partials.allocate(_shape(case, torch.float32), 2, CPU)
    out = torch.empty_like(step.queries)
    given_back = decode(step.queries, keys, values, step.slot_starts, step.slots, 64**-0.5, partials, out)
    assert given_back is out
    assert _error(case, torch.float32, out, step) < TOLERANCE[torch.float32]


def test_a_plan_follows_its_buffers() -> None:
    """As in a CUDA graph: planned once over longer buffers, whose contents then change, and with them the lengths."""
    before, after = (Case(kv_heads=2, group=4, head_dim=64, lengths=lengths) for lengths in ((3, 30), (50, 1)))
    starts, slots = torch.zeros(3, dtype=torch.int32), torch.full((64,), 10**6)
    model = TritonDecode(_shape(before, torch.float32), CPU, max_batch=2)
    model.plan(starts, slots)
    for case in (before, after):
        step = _step(case, torch.float32)
        starts.copy_(step.slot_starts)
        slots[: len(step.slots)] = step.slots
        out = model.run(step.queries, step.keys, step.values)
        assert _error(case, torch.float32, out, step) < TOLERANCE[torch.float32]


def test_what_it_cannot_serve_is_refused() -> None:
    with pytest.raises(ValueError, match="head dims up to 256, not 320"):
        paired_decode("triton", PairedShape(4, 2, 320, 1.0, torch.float32), CPU)
    with pytest.raises(ValueError, match=r"not torch\.float64"):
        paired_decode("triton", PairedShape(4, 2, 64, 1.0, torch.float64), CPU)
    case = Case(kv_heads=2, group=2, head_dim=64, lengths=(3, 4, 5))
    step = _step(case, torch.float32)
    with pytest.raises(ValueError, match="3 requests exceeds max_batch=2"):
        TritonDecode(_shape(case, torch.float32), CPU, max_batch=2).plan(step.slot_starts, step.slots)
    arguments = (step.slot_starts, step.slots, 1.0, Partials.allocate(_shape(case, torch.float32), 1, CPU))
    with pytest.raises(ValueError, match="3 requests does not fit"):
        decode(step.queries, step.keys, step.values, *arguments)
    with pytest.raises(ValueError, match="contiguous last dimension"):
        decode(step.queries[:1], step.keys.transpose(0, 2).contiguous().transpose(0, 2), step.values, *arguments)
