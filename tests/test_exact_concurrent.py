"""Many requests in one batch: base and agents, greedy and sampled, streamed and not, some of them aborted."""

from __future__ import annotations

from functools import partial
from typing import Any

import check
import pytest
import tiny
from deployments import on
from engine import Server, together
from reference import Reference

pytestmark = on("llama")

AGENTS = [None, *tiny.AGENTS]
SHARED = tiny.random_tokens(30, seed=5)


def last(server: Server, tokens: list[int], adapter: str | None, **request: Any) -> dict[str, Any]:
    """The last chunk of a streamed answer, each chunk checked to extend the one before it."""
    stream = server.stream(tokens, adapter, **request)
    response = next(stream)
    for chunk in stream:
        assert chunk["output_ids"][: len(response["output_ids"])] == response["output_ids"]
        response = chunk
    return response


def test_everything_at_once(server: Server, ours: Reference) -> None:
    """Sixteen requests of four agents: half share a prefix, half sample, a third stream, two ask for input logprobs."""
    requests = []
    for i in range(16):
        prompt = tiny.random_tokens(12 + 3 * i, seed=200 + i)
        prompt = SHARED + prompt if i % 2 else prompt
        sampling = {"temperature": 0.7 + 0.05 * i, "top_p": 0.95} if i % 4 >= 2 else {}
        more = {"logprob_start_len": len(prompt) // 2} if i in (5, 10) else {}
        requests.append((prompt, AGENTS[(i // 4 + i) % 4], sampling, i % 3 == 0, more))

    responses = together(
        [
            partial(
                last if streamed else Server.generate, server, prompt, agent, new_tokens=24, sampling=sampling, **more
            )
            for prompt, agent, sampling, streamed, more in requests
        ]
    )

    for (prompt, agent, sampling, _, more), response in zip(requests, responses, strict=True):
        assert len(response["output_ids"]) == 24
        check.output_is_exact(ours, prompt, agent, response, temperature=sampling.get("temperature", 0.0))
        if more:
            check.input_is_exact(ours, prompt, agent, response, start=more["logprob_start_len"])


def test_the_same_prompt_for_all_at_once(server: Server, ours: Reference) -> None:
    responses = together([partial(server.generate, SHARED, agent, new_tokens=16) for agent in AGENTS * 3])
    for agent, response in zip(AGENTS * 3, responses, strict=True):
        check.output_is_exact(ours, SHARED, agent, response)


@pytest.mark.parametrize("agent", AGENTS)
def test_several_samples_of_one_prompt(server: Server, ours: Reference, agent: str | None) -> None:
    samples = server.generate(SHARED, agent, new_tokens=12, sampling={"n": 4, "temperature": 1.0})
    assert len(samples) == 4
    assert len({tuple(sample["output_ids"]) for sample in samples}) > 1
    for sample in samples:
        check.output_is_exact(ours, SHARED, agent, sample, temperature=1.0)


def test_a_batch_in_one_request(server: Server, ours: Reference) -> None:
    """A list of prompts with a list of adapters, base among them."""
    prompts = [tiny.random_tokens(10 + i, seed=300 + i) for i in range(4)]
    body = server.body([], None)
    responses = server.http.post("/generate", json={**body, "input_ids": prompts, "lora_path": AGENTS}).json()
    for prompt, agent, response in zip(prompts, AGENTS, responses, strict=True):
        check.output_is_exact(ours, prompt, agent, response)


@pytest.mark.parametrize("how", ["by id", "by hanging up"])
def test_abort_in_mid_stream(server: Server, ours: Reference, how: str) -> None:
    """One request ends early; the others, its slots and its tokens so far are as if nothing had happened."""
    doomed = tiny.random_tokens(25, seed=6)

    def aborted() -> dict[str, Any]:
        chunks = server.stream(doomed, "plan", new_tokens=900, rid=f"doomed {how}")
        for _ in range(5):
            chunk = next(chunks)
        if how == "by id":
            server.http.post("/abort_request", json={"rid": f"doomed {how}"}).raise_for_status()
            *_, chunk = chunks
            assert chunk["meta_info"]["finish_reason"]["type"] == "abort"
        else:
            chunks.close()
        return chunk

    others = [(tiny.random_tokens(20 + i, seed=400 + i), AGENTS[i % 4]) for i in range(6)]
    cut, *responses = together(
        [aborted, *(partial(server.generate, prompt, agent, new_tokens=60) for prompt, agent in others)]
    )
    assert 0 < len(cut["output_ids"]) < 900
    check.output_is_exact(ours, doomed, "plan", cut)
    for (prompt, agent), response in zip(others, responses, strict=True):
        check.output_is_exact(ours, prompt, agent, response)

    server.flush()  # refused while any request is alive
    again = server.generate(doomed, "act", new_tokens=30)
    assert again["meta_info"]["cached_tokens"] == 0
    check.output_is_exact(ours, doomed, "act", again)
