"""ICaRus on a real server with a GPU: exact with each attention backend and LoRA backend, with and without CUDA graphs.

`make test-gpu` runs it; the default collection leaves tests/gpu out, since it needs a CUDA device. The Triton backends
run in float32, told not to round products to TF32, and are held to the CPU's tolerance. FlashInfer has no float32: it
runs in bfloat16, held to the float32 reference as closely as bfloat16's eight bits let it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import check
import pytest
import tiny
from engine import Server, together
from reference import Reference

HEAD_DIM = 64  # FlashInfer's smallest
DTYPES = {"triton": ("float32", check.TOLERANCE), "flashinfer": ("bfloat16", 0.3)}
AGENTS = [None, *tiny.AGENTS]
PROMPT = tiny.random_tokens(200, seed=31)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> tiny.Checkpoint:
    return tiny.save_checkpoint("llama", tmp_path_factory.mktemp("gpu"), head_dim=HEAD_DIM)


@pytest.fixture(scope="module")
def ours(model: tiny.Checkpoint) -> Reference:
    return Reference(model.model, model.adapters)


@pytest.fixture(params=[False, True], ids=["graphs", "eager"])
def eager(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.mark.parametrize("lora_backend", ["csgmv", "triton", "triton_v2"])
@pytest.mark.parametrize("attention_backend", list(DTYPES))
def test_exact(
    serve: Callable[..., Server],
    model: tiny.Checkpoint,
    ours: Reference,
    monkeypatch: pytest.MonkeyPatch,
    attention_backend: str,
    lora_backend: str,
    eager: bool,
) -> None:
    """Agents alone, together with the base model, over one cached prompt, and asked for input log-probabilities."""
    dtype, tolerance = DTYPES[attention_backend]
    monkeypatch.setattr(check, "TOLERANCE", tolerance)
    options: dict[str, Any] = {"disable_decode_cuda_graph": True} if eager else {}
    server = serve(
        model,
        env={"TRITON_F32_DEFAULT": "ieee"},
        kv_sharing="icarus",
        dtype=dtype,
        attention_backend=attention_backend,
        lora_backend=lora_backend,
        mem_fraction_static=0.5,
        **options,
    )
    for agent in AGENTS:
        check.output_is_exact(ours, PROMPT, agent, server.generate(PROMPT, agent, new_tokens=16))

    # Batches of one to seven requests: graphs of several sizes, padded, base-only ones among them.
    for count in (1, 3, 7):
        prompts = [tiny.random_tokens(20 + 30 * i, seed=40 + i) for i in range(count)]
        for agents in (AGENTS * 2, [None] * 8):
            calls = [partial(server.generate, p, a, new_tokens=24) for p, a in zip(prompts, agents, strict=False)]
            for prompt, agent, response in zip(prompts, agents, together(calls), strict=False):
                check.output_is_exact(ours, prompt, agent, response)

    start = len(PROMPT) - 30
    for agent in ("act", None):
        response = server.generate(PROMPT, agent, new_tokens=2, logprob_start_len=start)
        assert response["meta_info"]["cached_tokens"] == start
        check.input_is_exact(ours, PROMPT, agent, response, start=start)
    lines = Path(server.log).read_text(errors="replace").splitlines()
    assert any("Capture" in line and " decode " in line for line in lines) is not eager
