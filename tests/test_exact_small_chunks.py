"""Prefill in small chunks, alone and in one batch with others' decode."""

from __future__ import annotations

import threading
from functools import partial
from typing import Any

import check
import httpx
import pytest
import tiny
from deployments import CHUNK, on
from engine import Server, together
from reference import Reference

pytestmark = on("qwen2", "qwen3")

AGENTS = [None, *tiny.AGENTS]
LONG = tiny.random_tokens(600, seed=8)


@pytest.mark.parametrize("agent", AGENTS)
@pytest.mark.parametrize("length", [CHUNK - 1, CHUNK, CHUNK + 1, 5 * CHUNK + 7])
def test_chunks(server: Server, ours: Reference, agent: str | None, length: int) -> None:
    prompt = LONG[:length]
    check.output_is_exact(ours, prompt, agent, server.generate(prompt, agent))


@pytest.mark.parametrize("start", [0, 20, 70])
def test_input_logprobs_across_chunks(server: Server, ours: Reference, start: int) -> None:
    prompt = LONG[:100]
    for agent in ("plan", None):
        response = server.generate(prompt, agent, logprob_start_len=start, top_logprobs_num=3)
        check.input_is_exact(ours, prompt, agent, response, start=start)
        check.output_is_exact(ours, prompt, agent, response)


def test_several_chunked_prompts_at_once(server: Server, ours: Reference) -> None:
    prompts = [tiny.random_tokens(90 + 10 * i, seed=500 + i) for i in range(8)]
    agents = AGENTS * 2
    responses = together([partial(server.generate, p, a, new_tokens=16) for p, a in zip(prompts, agents, strict=True)])
    for prompt, agent, response in zip(prompts, agents, responses, strict=True):
        check.output_is_exact(ours, prompt, agent, response)


def test_abort_between_chunks(server: Server, ours: Reference, page: int) -> None:
    """A prompt given up half-way leaves the chunks it wrote, whole and usable, and no slot held."""
    server.generate(LONG[:40], "act")
    with pytest.raises(httpx.ReadTimeout):
        server.http.post("/generate", json=server.body(LONG, "plan", rid=f"half-way {page}"), timeout=0.05)
    server.http.post("/abort_request", json={"rid": f"half-way {page}"}).raise_for_status()
    for agent in ("reflect", None):
        response = server.generate(LONG, agent)
        check.output_is_exact(ours, LONG, agent, response)
    server.flush()
    assert server.generate(LONG, "plan")["meta_info"]["cached_tokens"] == 0


def test_prefill_and_decode_in_one_batch(server: Server, ours: Reference, page: int) -> None:
    """Three requests decode all through a long prompt's prefill; SGLang mixes only requests without log-probabilities,
    so those of what the mixed batches wrote and chose are asked for afterwards."""
    early = [(tiny.random_tokens(20 + i, seed=600 + i), agent) for i, agent in enumerate(["plan", "act", None])]
    prefilled = threading.Event()
    decoding = threading.Barrier(len(early) + 1)
    during = [0] * len(early)  # tokens that each chose before the long prompt gave its first

    def decode(i: int) -> dict[str, Any]:
        prompt, agent = early[i]
        stream = server.stream(prompt, agent, new_tokens=150, logprobs=False)
        response = next(stream)
        decoding.wait(timeout=60)
        for response in stream:
            if not prefilled.is_set():
                during[i] = len(response["output_ids"])
        return response

    def prefill() -> dict[str, Any]:
        decoding.wait(timeout=60)
        stream = server.stream(LONG, "reflect", new_tokens=12, logprobs=False)
        response = next(stream)
        prefilled.set()
        *_, response = stream
        return response

    *decoded, late = together([*(partial(decode, i) for i in range(len(early))), prefill])
    chunks = len(LONG) // CHUNK
    assert min(during) > chunks // 2, f"of {chunks} prefill steps only {during} also decoded: no mixed batches"

    for (prompt, agent), response in zip([*early, (LONG, "reflect")], [*decoded, late], strict=True):
        check.output_is_exact(ours, prompt, agent, response)
        path = [*prompt, *response["output_ids"]]
        start = len(path) - 5
        scored = server.generate(path, agent, new_tokens=4, logprob_start_len=start)
        assert scored["meta_info"]["cached_tokens"] == start // page * page
        check.input_is_exact(ours, path, agent, scored, start=start)
        check.output_is_exact(ours, path, agent, scored)
