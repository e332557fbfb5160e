"""Each supported model class, base and every adapter: tokens, output and input log-probabilities."""

from __future__ import annotations

import check
import pytest
import tiny
from deployments import on
from engine import Server
from reference import Reference

pytestmark = on("llama", "qwen2", "qwen3", "mistral")

PROMPT = tiny.random_tokens(40, seed=2)


@pytest.mark.parametrize("adapter", [None, *tiny.AGENTS])
def test_greedy(server: Server, ours: Reference, adapter: str | None) -> None:
    response = server.generate(PROMPT, adapter, new_tokens=24)
    check.output_is_exact(ours, PROMPT, adapter, response)
    assert response["output_ids"][:8] == ours.greedy(PROMPT, adapter, new_tokens=8)


@pytest.mark.parametrize("adapter", [None, "plan", "act"])
@pytest.mark.parametrize("start", [0, 21, 38])
def test_input_logprobs(server: Server, ours: Reference, adapter: str | None, start: int) -> None:
    response = server.generate(
        PROMPT, adapter, new_tokens=4, logprob_start_len=start, top_logprobs_num=5, token_ids_logprob=[2, 77, 300]
    )
    check.input_is_exact(ours, PROMPT, adapter, response, start=start)
    check.output_is_exact(ours, PROMPT, adapter, response)
    for key in ("top_logprobs", "token_ids_logprobs"):
        assert len(response["meta_info"][f"input_{key}"]) == len(PROMPT) - start
        assert len(response["meta_info"][f"output_{key}"]) == 4


def test_a_prompt_of_one_token(server: Server, ours: Reference) -> None:
    for adapter in (None, "plan"):
        response = server.generate(PROMPT[:1], adapter)
        check.output_is_exact(ours, PROMPT[:1], adapter, response)
