"""FlashInfer's own Python on CPU tensors: its wrappers plan and run as on a GPU, down to the compiled modules.

Those, which need a GPU, are replaced by `Module`: it records what the wrapper planned, and attends in float32 with that
plan alone. A plan for another number of heads, or one that was overwritten, is an error there, where the real kernels
would return and say nothing.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode

CAUSAL = 1  # flashinfer.utils.MaskMode


class OnCpu(TorchFunctionMode):
    """What asks for CUDA or pinned memory gets ordinary memory."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if "device" in kwargs and torch.device(kwargs["device"]).type == "cuda":
            kwargs["device"] = "cpu"
        kwargs.pop("pin_memory", None)
        return func(*args, **kwargs)


@dataclass(eq=False)
class Plan:
    """What one call of a compiled module's `plan` was told."""

    kind: str  # "cuda cores" or "tensor cores"
    heads: int
    kv_heads: int
    graph: bool
    kv_starts: list[int]
    q_starts: list[int]


@dataclass
class Module:
    """Stands for the modules that FlashInfer compiles. `built`: the arguments they would be built with."""

    plans: list[Plan] = field(default_factory=list)
    built: list[tuple[str, tuple[Any, ...]]] = field(default_factory=list)
    ragged: int = 0

    @property
    def last(self) -> Plan:
        return self.plans[-1]

    def cuda_cores(self, *args: Any) -> Any:
        """Stands for flashinfer.decode.get_batch_decode_module."""
        self.built.append(("decode", args))

        def plan(*args: Any) -> Plan:
            starts, batch, heads, kv_heads, page, graph = args[3:9]
            assert page == 1
            self.plans.append(Plan("cuda cores", heads, kv_heads, graph, starts.tolist(), list(range(batch + 1))))
            return self.last

        def run(*args: Any) -> None:
            plan, q, k, v, starts, slots, _last_page, out = args[2:10]
            out.copy_(_attend(plan, q, k, v, starts, slots, scaling=args[16], causal=False))

        return SimpleNamespace(plan=plan, run=run)

    def tensor_cores(self, backend: str, *args: Any) -> Any:
        """Stands for flashinfer.prefill.get_batch_prefill_module, which decode on tensor cores uses as well."""
        assert backend == "fa2"
        self.built.append(("prefill", (backend, *args)))

        def plan(*args: Any) -> Plan:
            q_starts, starts, _lengths, rows, batch, heads, kv_heads, page, graph = args[3:12]
            assert page == 1
            assert len(q_starts) == len(starts) == batch + 1
            assert int(q_starts[-1]) == rows
            self.plans.append(Plan("tensor cores", heads, kv_heads, graph, starts.tolist(), q_starts.tolist()))
            return self.last

        def paged_run(*args: Any) -> None:
            plan, q, k, v, q_starts, starts, slots, _last_page, out, _lse, mask = args[2:13]
            assert q_starts.tolist() == plan.q_starts, "the rows' plan was overwritten"
            out.copy_(_attend(plan, q, k, v, starts, slots, scaling=args[23], causal=mask == CAUSAL))

        def ragged_run(*args: Any) -> None:
            self.ragged += 1

        return SimpleNamespace(plan=plan, paged_run=paged_run, ragged_run=ragged_run)


def _attend(
    plan: Plan,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    starts: torch.Tensor,
    slots: torch.Tensor,
    *,
    scaling: float,
    causal: bool,
) -> torch.Tensor:
    """q [rows, heads, d] over the plan's requests; k, v [pool, 1, Hkv, d]."""
    assert (q.shape[1], k.shape[2]) == (plan.heads, plan.kv_heads), "run with other heads than planned"
    assert starts.tolist() == plan.kv_starts, "the slots' plan was overwritten"
    assert q.shape[0] == plan.q_starts[-1]
    assert starts.dtype == slots.dtype == torch.int32, "the kernels are compiled for int32"
    out = torch.empty_like(q)
    for request in range(len(plan.kv_starts) - 1):
        rows = slice(plan.q_starts[request], plan.q_starts[request + 1])
        mine = slots[plan.kv_starts[request] : plan.kv_starts[request + 1]].long()
        out[rows] = attention(q[rows], k[mine, 0], v[mine, 0], scaling, causal).to(q.dtype)
    return out


def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scaling: float, causal: bool) -> torch.Tensor:
    """q [m, heads, d], k and v [L, Hkv, d] -> [m, heads, d], float32. Causal: the queries are the last m of L."""
    group = q.shape[1] // k.shape[1]
    q, k, v = q.float(), k.float().repeat_interleave(group, 1), v.float().repeat_interleave(group, 1)
    scores = torch.einsum("mhd,lhd->hml", q, k) * scaling
    if causal:
        m, length = scores.shape[1:]
        scores = scores.masked_fill(~torch.ones(m, length, dtype=torch.bool).tril(length - m), float("-inf"))
    return torch.einsum("hml,lhd->mhd", scores.softmax(-1), v)


@contextlib.contextmanager
def flashinfer_on_cpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[Module]:
    """Within it, FlashInfer's wrappers take CPU tensors; yields the Module behind them."""
    import flashinfer.decode
    import flashinfer.prefill
    import flashinfer.utils

    module = Module()
    monkeypatch.setattr(flashinfer.decode, "get_batch_decode_module", module.cuda_cores)
    for where in (flashinfer.decode, flashinfer.prefill):
        monkeypatch.setattr(where, "get_batch_prefill_module", module.tensor_cores)
    # As on Ampere, where every wrapper takes the "fa2" kernels that SGLang names for decode and paged prefill.
    monkeypatch.setattr(flashinfer.utils, "get_compute_capability", lambda device: (8, 0))
    monkeypatch.setattr(torch.cuda, "device", lambda device: contextlib.nullcontext())
    with OnCpu():
        yield module
