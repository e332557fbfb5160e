"""Paired decode attention in Triton: split-KV grouped decode (flash-decoding), then a reduction over the splits.

A program of the first kernel takes one request, one KV head, one tile of that head's group and one split of the
request's tokens; so a tile never straddles two KV heads, and any group size is right. It leaves its attention's output
and the logarithm of its softmax sum, in base 2. The second kernel weighs the splits of each head together.

The splits are sized on the device from the slot table, so the grids depend on shapes alone: nothing waits for a length,
and a captured CUDA graph serves whatever lengths its slot table is later given. There is no sliding window, no logit
cap and no attention sink; nothing in the interface can ask for one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl

from descant.kernels.paired.base import PairedDecode, PairedShape

MAX_HEAD_DIM = 256
DTYPES = (torch.float32, torch.float16, torch.bfloat16)
MAX_SPLITS = 64

_PROGRAMS_PER_PROCESSOR = 4
_INTERPRETED_PROGRAMS = 8
_LOG2_E = 1.4426950408889634


@triton.jit
def _split_bounds(slot_starts, batch, requests, max_splits, share, TOKENS: tl.constexpr):
    """Request `batch`'s first slot, its length, and the tokens of one of its splits, a multiple of TOKENS.

    A split is 1 / share of the whole batch's tokens, so that the batch fills the device however ragged it is; all of a
    request's splits are of one size, and none is shorter than TOKENS but the last.
    """
    start = tl.load(slot_starts + batch)
    length = tl.load(slot_starts + batch + 1) - start
    total = tl.load(slot_starts + requests)
    fair = tl.maximum(tl.cdiv(total, share), TOKENS)
    splits = tl.minimum(tl.cdiv(length, fair), max_splits)
    return start, length, tl.cdiv(tl.cdiv(length, splits), TOKENS) * TOKENS


@triton.jit(do_not_specialize=["kv_heads", "group", "max_splits", "share"])
def split_kernel(
    queries,  # [B, 2H, d]
    keys,  # [pool, Hkv, d]
    values,
    slot_starts,  # [B + 1]
    slots,  # [total]
    partial_out,  # [B * max_splits, 2H, d] float32
    partial_lse,  # [B * max_splits, 2H] float32
    scaling,  # in base 2
    kv_heads,
    group,
    key_slot_stride,
    key_head_stride,
    value_slot_stride,
    value_head_stride,
    max_splits,
    share,
    HEAD_DIM: tl.constexpr,
    GROUP_TILE: tl.constexpr,
    DIM_TILE: tl.constexpr,
    TOKENS: tl.constexpr,
):
    """Grid (max_splits, Hkv * tiles of a group, B)."""
    split = tl.program_id(0)
    batch = tl.program_id(2)
    start, length, size = _split_bounds(slot_starts, batch, tl.num_programs(2), max_splits, share, TOKENS)
    first = split * size
    if first >= length:
        return
    last = tl.minimum(first + size, length)

    tiles = tl.cdiv(group, GROUP_TILE)
    kv_head = (tl.program_id(1) // tiles).to(tl.int64)
    member = tl.program_id(1) % tiles * GROUP_TILE + tl.arange(0, GROUP_TILE)  # of the group
    head = kv_head * group + member
    dim = tl.arange(0, DIM_TILE)
    held = (member < group)[:, None] & (dim < HEAD_DIM)[None, :]
    heads = kv_heads * group
    rows = batch.to(tl.int64) * heads + head
    query = tl.load(queries + rows[:, None] * HEAD_DIM + dim[None, :], mask=held, other=0.0)

    keys += kv_head * key_head_stride
    values += kv_head * value_head_stride
    peak = tl.full([GROUP_TILE], float("-inf"), tl.float32)
    mass = tl.zeros([GROUP_TILE], tl.float32)
    out = tl.zeros([GROUP_TILE, DIM_TILE], tl.float32)
    for offset in range(first, last, TOKENS):
        token = offset + tl.arange(0, TOKENS)
        live = token < last
        slot = tl.load(slots + start + token, mask=live, other=0).to(tl.int64)  # pool offsets exceed 32 bits
        key = tl.load(
            keys + slot[None, :] * key_slot_stride + dim[:, None],
            mask=live[None, :] & (dim < HEAD_DIM)[:, None],
            other=0.0,
        )
        scores = tl.dot(query, key, input_precision="ieee") * scaling
        scores = tl.where(live[None, :], scores, float("-inf"))
        value = tl.load(
            values + slot[:, None] * value_slot_stride + dim[None, :],
            mask=live[:, None] & (dim < HEAD_DIM)[None, :],
            other=0.0,
        )
        higher = tl.maximum(peak, tl.max(scores, 1))
        fade = tl.exp2(peak - higher)
        weights = tl.exp2(scores - higher[:, None])
        mass = mass * fade + tl.sum(weights, 1)
        out = out * fade[:, None] + tl.dot(weights.to(value.dtype), value, input_precision="ieee")
        peak = higher

    rows = (batch.to(tl.int64) * max_splits + split) * heads + head
    tl.store(partial_out + rows[:, None] * HEAD_DIM + dim[None, :], out / mass[:, None], mask=held)
    tl.store(partial_lse + rows, peak + tl.log2(mass), mask=member < group)


@triton.jit(do_not_specialize=["max_splits", "share"])
def combine_kernel(
    partial_out,  # [B * max_splits, 2H, d] float32
    partial_lse,  # [B * max_splits, 2H] float32
    slot_starts,  # [B + 1]
    out,  # [B, 2H, d]
    max_splits,
    share,
    HEAD_DIM: tl.constexpr,
    DIM_TILE: tl.constexpr,
    TOKENS: tl.constexpr,
    SPLIT_TILE: tl.constexpr,
):
    """Grid (2H, B). Reads the splits that were written, and no others."""
    head = tl.program_id(0)
    heads = tl.num_programs(0)
    batch = tl.program_id(1)
    _, length, size = _split_bounds(slot_starts, batch, tl.num_programs(1), max_splits, share, TOKENS)
    dim = tl.arange(0, DIM_TILE)
    peak = tl.full([1], float("-inf"), tl.float32)
    mass = tl.zeros([1], tl.float32)
    total = tl.zeros([DIM_TILE], tl.float32)
    for first in range(0, tl.cdiv(length, size), SPLIT_TILE):
        split = first + tl.arange(0, SPLIT_TILE)
        live = split * size < length
        rows = (batch.to(tl.int64) * max_splits + split) * heads + head
        lse = tl.load(partial_lse + rows, mask=live, other=float("-inf"))
        part = tl.load(
            partial_out + rows[:, None] * HEAD_DIM + dim[None, :],
            mask=live[:, None] & (dim < HEAD_DIM)[None, :],
            other=0.0,
        )
        higher = tl.maximum(peak, tl.max(lse, 0))
        fade = tl.exp2(peak - higher)
        weights = tl.exp2(lse - higher)
        mass = mass * fade + tl.sum(weights, 0)
        total = total * fade + tl.sum(weights[:, None] * part, 0)
        peak = higher
    row = batch.to(tl.int64) * heads + head
    tl.store(out + row * HEAD_DIM + dim, (total / mass).to(out.dtype.element_ty), mask=dim < HEAD_DIM)


@dataclass(frozen=True)
class Partials:
    """Room for what the splits of one step leave, used again by every layer and step.

    out: [rows, 2H, d] float32. lse: [rows, 2H] float32. programs: how many programs fill the device.
    It is never grown: captured graphs hold its addresses.
    """

    out: torch.Tensor
    lse: torch.Tensor
    programs: int

    @classmethod
    def allocate(
        cls, shape: PairedShape, max_batch: int, device: torch.device, programs: int | None = None
    ) -> Partials:
        """For steps of up to `max_batch` requests; `programs` by default from the device's multiprocessors."""
        if programs is None and device.type == "cuda":
            programs = _PROGRAMS_PER_PROCESSOR * torch.cuda.get_device_properties(device).multi_processor_count
        programs = programs or _INTERPRETED_PROGRAMS
        lanes = shape.kv_heads * _tiles(shape.group)
        rows = max(batch * _max_splits(programs, lanes * batch) for batch in range(1, max_batch + 1))
        out = torch.empty(rows, shape.query_heads, shape.head_dim, dtype=torch.float32, device=device)
        return cls(out, torch.empty(rows, shape.query_heads, dtype=torch.float32, device=device), programs)


@dataclass(frozen=True)
class Launch:
    """One kernel, its grid, its arguments by name, and the options that it is compiled with."""

    kernel: Any
    grid: tuple[int, ...]
    arguments: dict[str, Any]
    num_warps: int
    num_stages: int


def decode(
    queries: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    slot_starts: torch.Tensor,
    slots: torch.Tensor,
    scaling: float,
    partials: Partials,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """Grouped decode attention over a slot table; [B, 2H, d] -> [B, 2H, d]. Runs on the current CUDA device.

    Args:
        queries: [B, 2H, d] float32, float16 or bfloat16, contiguous.
        keys, values: [pool, Hkv, d], the queries' dtype; any strides but the last, which is 1.
        slot_starts: [B + 1] int32 (more are not read); request b reads slots[slot_starts[b] : slot_starts[b + 1]].
        slots: [total] int32 or int64 (more are not read), indices into the pool.
        scaling: multiplies q k^T.
        partials: allocated for these heads and head dim, and for at least B requests.
        out: [B, 2H, d], contiguous, written and returned; made where it is not given.

    Raises:
        ValueError: `partials` is too small, or a last dimension is not contiguous.
    """
    if out is None:
        out = torch.empty_like(queries)
    for launch in launches(queries, keys, values, slot_starts, slots, scaling, partials, out):
        options = {"num_warps": launch.num_warps, "num_stages": launch.num_stages}
        launch.kernel[launch.grid](**launch.arguments, **options)
    return out


def launches(
    queries: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    slot_starts: torch.Tensor,
    slots: torch.Tensor,
    scaling: float,
    partials: Partials,
    out: torch.Tensor,
) -> tuple[Launch, Launch]:
    """What `decode` launches; from shapes, strides and dtypes alone, so that it can be compiled ahead of time too."""
    batch, heads, head_dim = queries.shape
    kv_heads = keys.shape[1]
    group = heads // kv_heads
    lanes = kv_heads * _tiles(group)
    max_splits = _max_splits(partials.programs, lanes * batch)
    if batch * max_splits > partials.out.shape[0]:
        raise ValueError(
            f"A step of {batch} requests does not fit the partials, which were allocated for fewer; "
            "allocate them for the largest batch."
        )
    if keys.stride(2) != 1 or values.stride(2) != 1 or not queries.is_contiguous():
        raise ValueError("Triton decode needs contiguous queries and a contiguous last dimension of keys and values.")
    tile = _group_tile(group)
    dim_tile = max(16, triton.next_power_of_2(head_dim))
    # Chosen by bench/aot.py's table: no spills. A float32 product runs on the CUDA cores and holds more registers; with
    # two stages instead of three, the assemblers of some CUDA releases spill it.
    if queries.dtype == torch.float32:
        tokens, warps, stages = 16, 4 if tile == 16 else 8, 3
    else:
        tokens, warps, stages = 64 if dim_tile <= 128 else 32, 4, 2
    split = {
        "queries": queries,
        "keys": keys,
        "values": values,
        "slot_starts": slot_starts,
        "slots": slots,
        "partial_out": partials.out,
        "partial_lse": partials.lse,
        "scaling": scaling * _LOG2_E,
        "kv_heads": kv_heads,
        "group": group,
        "key_slot_stride": keys.stride(0),
        "key_head_stride": keys.stride(1),
        "value_slot_stride": values.stride(0),
        "value_head_stride": values.stride(1),
        "max_splits": max_splits,
        "share": triton.cdiv(partials.programs, lanes),
        "HEAD_DIM": head_dim,
        "GROUP_TILE": tile,
        "DIM_TILE": dim_tile,
        "TOKENS": tokens,
    }
    shared = ("partial_out", "partial_lse", "slot_starts", "max_splits", "share", "HEAD_DIM", "DIM_TILE", "TOKENS")
    combine = {"out": out, "SPLIT_TILE": 16, **{name: split[name] for name in shared}}
    return (
        Launch(split_kernel, (max_splits, lanes, batch), split, num_warps=warps, num_stages=stages),
        Launch(combine_kernel, (heads, batch), combine, num_warps=4, num_stages=2),
    )


def _group_tile(group: int) -> int:
    """Rows of a tile: tensor cores take 16 at least; above 32, tiles read the KV again rather than spill."""
    return 16 if group <= 16 else 32


def _tiles(group: int) -> int:
    return triton.cdiv(group, _group_tile(group))


def _max_splits(programs: int, lanes: int) -> int:
    """The most splits of one request: four times its share of the device, so that a long one is not left behind."""
    return min(MAX_SPLITS, 4 * triton.cdiv(programs, lanes))


class TritonDecode(PairedDecode):
    """The kernels above. Serves head dims up to 256, in float32 (no TF32), float16 and bfloat16.

    `plan` only keeps the tensors that it is given. For a CUDA graph, plan with static buffers before the capture and
    write the next slot tables into them; a batch smaller than the captured one needs a slot for each padding request.

    Args:
        max_batch: the most requests of a step. The buffers are allocated for it here, once.

    Raises:
        ValueError: the head dim, the dtype or the device cannot be served.
    """

    def __init__(self, shape: PairedShape, device: torch.device, max_batch: int = 256) -> None:
        super().__init__(shape, device)
        if shape.head_dim > MAX_HEAD_DIM:
            raise ValueError(f"Triton decode serves head dims up to {MAX_HEAD_DIM}, not {shape.head_dim}.")
        if shape.dtype not in DTYPES:
            raise ValueError(f"Triton decode serves float32, float16 and bfloat16, not {shape.dtype}.")
        if device.type != "cuda" and not triton.knobs.runtime.interpret:
            raise ValueError(f"Triton decode needs a CUDA device, not '{device}'; 'reference' runs on any.")
        self.max_batch = max_batch
        self.partials = Partials.allocate(shape, max_batch, device)

    def plan(self, slot_starts: torch.Tensor, slots: torch.Tensor) -> None:
        """See the base class. Raises ValueError for more than `max_batch` requests."""
        if slot_starts.shape[0] - 1 > self.max_batch:
            raise ValueError(f"A step of {slot_starts.shape[0] - 1} requests exceeds max_batch={self.max_batch}.")
        self.slot_starts, self.slots = slot_starts, slots

    def run(self, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        return decode(queries, keys, values, self.slot_starts, self.slots, self.shape.scaling, self.partials)
