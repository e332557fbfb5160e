"""SGLang's LoRA backends on CPU tensors, under ICaRus: built, fed with batches, read.

Run as a program with TRITON_INTERPRET=1, it holds what a backend's kernels compute for paired rows against torch.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import torch
from sglang.srt.lora.backend.lora_registry import get_backend_from_name
from sglang.srt.model_executor.forward_batch_info import ForwardMode

BACKENDS = ("csgmv", "triton", "triton_v2")
BASE, PLAN, ACT = 0, 2, 1  # slots of the pool
RANKS = {"act": 8, "plan": 4}
SCALINGS = {"act": 2.0, "plan": 0.5}
SLOTS = {None: BASE, "act": ACT, "plan": PLAN}
TOLERANCE = 1e-4  # float32, 64 summands


def unpinned(original: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """A torch factory that makes ordinary memory where pinned memory is asked for, which needs an accelerator."""

    @functools.wraps(original)
    def factory(*args: Any, pin_memory: bool = False, **kwargs: Any) -> torch.Tensor:
        return original(*args, **kwargs)

    return factory


def serve_icarus(set_attribute: Callable[[Any, str, Any], None]) -> None:
    """What the engine publishes for a server with --kv-sharing icarus, as far as LoRA reads it."""
    import sglang.kernels.ops.lora.dense.lora_tuning_config as tuning
    import sglang.srt.lora.backend.chunked_backend as chunked
    import sglang.srt.lora.backend.triton_backend as triton_backend

    from descant.sglang_ext import lora
    from descant.sglang_ext.schemes import scheme_named

    set_attribute(lora, "active_scheme", lambda: scheme_named("icarus"))
    set_attribute(tuning, "get_device_name", lambda: "none")
    set_attribute(chunked, "get_lora", lambda: SimpleNamespace(max_lora_chunk_size=16))
    set_attribute(triton_backend, "get_forward", lambda: SimpleNamespace(lora_batch_layout=None))


def manager(backend: str) -> Any:
    """A SharingLoRAManager with `backend` and two loaded adapters, its pool the slots above."""
    from descant.sglang_ext.lora import SharingLoRAManager

    upstream = SharingLoRAManager.__mro__[1]  # SGLang's, even where ours has taken its place in SGLang
    built: Any = SharingLoRAManager.__new__(SharingLoRAManager)

    def init(self: Any) -> None:
        self.lora_backend = get_backend_from_name(backend)(
            max_loras_per_batch=3, device=torch.device("cpu"), server_args=None
        )

    original = upstream.__init__
    upstream.__init__ = init  # the rest of it needs a model
    try:
        SharingLoRAManager.__init__(built)
    finally:
        upstream.__init__ = original
    built.max_loras_per_batch = 3
    built.attn_dp_enabled = False
    built.device = torch.device("cpu")
    built.memory_pool = SimpleNamespace(uid_to_buffer_id=SLOTS, get_buffer_id=SLOTS.__getitem__)
    built.loras = {
        name: SimpleNamespace(config=SimpleNamespace(r=rank), scaling=SCALINGS[name]) for name, rank in RANKS.items()
    }
    return built


def decode_batch(adapters: Sequence[str | None]) -> Any:
    return SimpleNamespace(
        batch_size=len(adapters),
        lora_ids=list(adapters),
        forward_mode=ForwardMode.DECODE,
        return_logprob=False,
        extend_num_tokens=None,
    )


def extend_batch(adapters: Sequence[str | None], lengths: Sequence[int], starts: Sequence[int]) -> Any:
    return SimpleNamespace(
        batch_size=len(adapters),
        lora_ids=list(adapters),
        forward_mode=ForwardMode.EXTEND,
        return_logprob=True,
        extend_seq_lens=torch.tensor(lengths, dtype=torch.int32),
        extend_seq_lens_cpu=list(lengths),
        extend_logprob_start_lens_cpu=list(starts),
        extend_num_tokens=sum(lengths),
    )


def slots_of_rows(lora: Any) -> list[int]:
    """The slot that each row runs under, as the backend's kernels will read it; BASE where no segment has the row."""
    backend = lora.lora_backend
    info = backend.batch_info
    if backend.name == "triton_v2":
        return [BASE if slot < 0 else slot for slot in info.token_slots.tolist()]
    if backend.name == "triton" and backend.sgemm_batch_info is not None:
        info = backend.sgemm_batch_info
    starts = info.seg_indptr.tolist()
    order = list(range(starts[-1])) if info.permutation is None else info.permutation.tolist()
    slots = [BASE] * (info.permutation.numel() if info.permutation is not None else starts[-1])
    for segment in range(info.num_segments):
        for row in order[starts[segment] : starts[segment + 1]]:
            slots[row] = int(info.weight_indices[segment])
    return slots


def check_numbers(lora: Any, slots: Sequence[int]) -> None:
    """The backend's A and B products, single and stacked as q, k, v, for rows under `slots`; against torch."""
    generator = torch.Generator().manual_seed(len(slots))

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator)

    width, rank, query, key = 64, max(RANKS.values()), 48, 32
    ranks, scalings = [0, RANKS["act"], RANKS["plan"]], [0.0, SCALINGS["act"], SCALINGS["plan"]]
    x = normal(len(slots), width)
    for offsets in ((0, query), (0, query, query + key, query + 2 * key)):
        parts, out = len(offsets) - 1, offsets[-1]
        a, b, base = normal(3, parts * rank, width), normal(3, out, rank), normal(len(slots), out)
        wanted = base.clone()
        for row, slot in enumerate(slots):
            r = ranks[slot]
            for part in range(parts):  # an adapter of rank r has its parts' A rows packed at [part * r, (part + 1) * r)
                first, last = offsets[part], offsets[part + 1]
                shrunk = a[slot, part * r : (part + 1) * r] @ x[row]
                wanted[row, first:last] += scalings[slot] * (b[slot, first:last, :r] @ shrunk)
        got = _through(lora.lora_backend, x, a, b, base.clone(), offsets)
        error = (got - wanted).abs().max().item()
        assert error < TOLERANCE, f"{lora.lora_backend.name}, {parts} parts, {list(slots)}: off by {error}"


def _through(
    backend: Any, x: torch.Tensor, a: torch.Tensor, b: torch.Tensor, base: torch.Tensor, offsets: tuple[int, ...]
) -> torch.Tensor:
    """As SGLang's LoRA layers call a backend."""
    bounds = host = torch.tensor(offsets, dtype=torch.int32)
    if len(offsets) == 2:
        shrunk = backend.run_lora_a_sgemm(x, a)
        return backend.run_lora_b_sgemm(shrunk, b, output_offset=bounds, output_offset_cpu=host, base_output=base)
    widest = max(last - first for first, last in itertools.pairwise(offsets))
    return backend.run_qkv_lora(
        x,
        a,
        b,
        output_offset=bounds,
        output_offset_cpu=host,
        max_qkv_out_dim=widest,
        base_output=base,
    )


def set_up() -> None:
    for name in ("tensor", "empty", "arange", "zeros"):
        setattr(torch, name, unpinned(getattr(torch, name)))
    serve_icarus(setattr)


def check(backend: str) -> None:
    lora = manager(backend)
    lora.prepare_lora_batch(decode_batch(["act", None, "plan"]))
    check_numbers(lora, [BASE, ACT, BASE, BASE, BASE, PLAN])

    lora.prepare_lora_batch(extend_batch(["act", None, "plan"], [3, 20, 4], starts=[3, 20, 1]))
    check_numbers(lora, [BASE] * 27 + [ACT] + [PLAN] * 3)

    lora.init_decode_cuda_graph_batch_info(4, 1)
    lora.prepare_lora_batch(decode_batch(["plan", "act"]))
    check_numbers(lora, [BASE, PLAN, BASE, ACT, BASE, BASE, BASE, BASE])  # two requests, and two of padding


if __name__ == "__main__":
    set_up()
    for name in ("csgmv", "triton"):  # triton_v2's kernels take CUDA tensors only, interpreted or not
        check(name)
