"""SGLang's own LoRA backends carry paired rows: what they prepare, eager and for CUDA graphs, and what they compute.

The backends are SGLang's classes on CPU tensors. What is prepared is read here; what their Triton kernels make of it is
computed by `paired_lora.py`, in a process whose Triton interprets.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import paired_lora
import pytest
import torch
from paired_lora import ACT, BASE, PLAN, decode_batch, extend_batch, manager, slots_of_rows
from sglang.srt.model_executor.runner_utils.capture_mode import capture_lora_variant

BACKENDS = paired_lora.BACKENDS
GRAPH_REQUESTS = 4  # the largest captured batch


@pytest.fixture(autouse=True)
def _without_pinned_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("tensor", "empty", "arange", "zeros"):
        monkeypatch.setattr(torch, name, paired_lora.unpinned(getattr(torch, name)))
    paired_lora.serve_icarus(monkeypatch.setattr)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_paired_decode(backend: str) -> None:
    """Each request's encoder row runs under the base model's slot and its decoder row under its adapter's."""
    lora = manager(backend)
    lora.prepare_lora_batch(decode_batch(["act", None, "plan"]))
    assert slots_of_rows(lora) == [BASE, ACT, BASE, BASE, BASE, PLAN]
    assert lora.lora_backend.batch_info.has_active_lora


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_extend(backend: str) -> None:
    lora = manager(backend)
    lora.prepare_lora_batch(extend_batch(["act", None, "plan"], [3, 2, 4], starts=[3, 2, 1]))
    assert slots_of_rows(lora) == [BASE] * 9 + [ACT] + [PLAN] * 3


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_batch_without_adapters_is_upstreams(backend: str) -> None:
    lora = manager(backend)
    lora.prepare_lora_batch(decode_batch([None, None]))
    assert slots_of_rows(lora) == [BASE, BASE]
    assert not lora.lora_backend.batch_info.has_active_lora  # its layers then run no LoRA kernel


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_base_slot_has_rank_zero(backend: str) -> None:
    lora = manager(backend)
    lora.prepare_lora_batch(decode_batch(["act", "plan"]))
    assert lora.lora_backend.batch_info.lora_ranks.tolist() == [0, 8, 4]


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_graph_holds_twice_its_requests_rows(backend: str) -> None:
    """Captured for a full batch of requests to come, replayed for fewer: the rest of its buffer stays harmless."""
    lora = manager(backend)
    lora.init_decode_cuda_graph_batch_info(GRAPH_REQUESTS, 1)
    with capture_lora_variant("lora"):
        lora.prepare_lora_batch(decode_batch([None] * GRAPH_REQUESTS))
    captured = lora.lora_backend.batch_info
    assert captured.use_cuda_graph
    assert slots_of_rows(lora) == [BASE] * 2 * GRAPH_REQUESTS
    held = {name: tensor.data_ptr() for name, tensor in vars(captured).items() if isinstance(tensor, torch.Tensor)}

    lora.prepare_lora_batch(decode_batch(["act", None, "plan"]))
    replayed = lora.lora_backend.batch_info
    assert replayed is captured
    assert {name: getattr(replayed, name).data_ptr() for name in held} == held
    assert slots_of_rows(lora) == [BASE, ACT, BASE, BASE, BASE, PLAN, BASE, BASE]


@pytest.mark.parametrize("backend", BACKENDS)
def test_more_requests_than_the_graphs_hold_run_eager(backend: str) -> None:
    lora = manager(backend)
    lora.init_decode_cuda_graph_batch_info(GRAPH_REQUESTS, 1)
    adapters = ["act"] * (GRAPH_REQUESTS + 1)
    lora.prepare_lora_batch(decode_batch(adapters))
    assert not lora.lora_backend.batch_info.use_cuda_graph
    assert slots_of_rows(lora) == [BASE, ACT] * len(adapters)


@pytest.mark.parametrize("backend", BACKENDS)
def test_every_decode_graph_is_captured_twice_and_no_prefill_graph(backend: str) -> None:
    from sglang.srt.model_executor.runner.decode_cuda_graph_runner import _lora_backend_skips_inactive

    class Runner:
        lora_manager: Any = manager(backend)

    assert _lora_backend_skips_inactive(Runner)
    assert not Runner.lora_manager.supports_prefill_cuda_graph


def test_the_kernels_agree_with_torch() -> None:
    """Of csgmv and triton: products single and stacked, paired decode and extend, eager and in a graph's buffers.

    Those of triton_v2 take CUDA tensors only; that it gives each row its slot is all that is shown here.
    """
    script = Path(__file__).with_name("paired_lora.py")
    env = {**os.environ, "TRITON_INTERPRET": "1"}
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=400, env=env)
    assert done.returncode == 0, done.stdout + done.stderr
