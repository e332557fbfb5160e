"""A request that cannot be served gets a 4xx that says why, and the next good one is served as ever."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import check
import pytest
import tiny
from deployments import on
from engine import Server
from reference import Reference

pytestmark = on("llama")

PROMPT = tiny.random_tokens(20, seed=11)
LIMIT = tiny.CONTEXT

BAD: dict[str, dict[str, Any]] = {
    "unknown adapter": {"lora_path": "nobody"},
    "one unknown adapter of two": {"input_ids": [PROMPT, PROMPT], "lora_path": ["plan", "nobody"]},
    "prompt as long as the context": {"input_ids": tiny.random_tokens(LIMIT, seed=12)},
    "prompt far over the context": {"input_ids": tiny.random_tokens(5 * LIMIT, seed=12)},
    "prompt and output over the context": {"sampling_params": {"max_new_tokens": LIMIT}},
    "negative id": {"input_ids": [5, -1, 7]},
    "very negative id": {"input_ids": [5, -(2**40), 7]},
    "id one past the vocabulary": {"input_ids": [5, tiny.VOCAB_SIZE, 7]},
    "id within the padded vocabulary": {"input_ids": [5, 447, 7]},
    "id of 2^31": {"input_ids": [5, 2**31, 7]},
    "id of 2^63": {"input_ids": [5, 2**63, 7]},
    "bad id in one prompt of two": {"input_ids": [PROMPT, [5, 10**6]]},
    "id that is a string": {"input_ids": [5, "7", 7]},
    "ids that are a string": {"input_ids": "5 6 7"},
    "id that is a fraction": {"input_ids": [5, 6.5, 7]},
    "id that is null": {"input_ids": [5, None, 7]},
    "ids nested too deep": {"input_ids": [[[5, 6], [7]]]},
    "ids and lists mixed": {"input_ids": [5, [6, 7]]},
    "no ids": {"input_ids": []},
    "text that is empty": {"input_ids": None, "text": ""},
    "an empty prompt of two": {"input_ids": [PROMPT, []]},
    "null for ids": {"input_ids": None},
    "logprobs from past the prompt": {"return_logprob": True, "logprob_start_len": len(PROMPT) + 1},
    "more top logprobs than tokens": {"return_logprob": True, "top_logprobs_num": 10**7},
    "fewer top logprobs than none": {"return_logprob": True, "top_logprobs_num": -1},
    "two adapters for one prompt": {"lora_path": ["plan", "act"]},
    "negative temperature": {"sampling_params": {"temperature": -1.0}},
    "a regex that is none": {"sampling_params": {"regex": "(a", "max_new_tokens": 4}},
    "a schema that is none": {"sampling_params": {"json_schema": "{not json", "max_new_tokens": 4}},
}


@pytest.mark.parametrize("agent", [None, "plan"])
@pytest.mark.parametrize("mistake", BAD)
def test_a_mistake(server: Server, reference: Callable[[str], Reference], mistake: str, agent: str | None) -> None:
    answer = server.http.post("/generate", json={**server.body(PROMPT, agent), **BAD[mistake]}, timeout=20)
    assert 400 <= answer.status_code < 500, f"{answer.status_code}: {answer.text}\n{server.log_tail()}"
    assert len(answer.text) > 20, f"no reason is given: {answer.text!r}"
    check.output_is_exact(reference("llama"), PROMPT, agent, server.generate(PROMPT, agent))
    server.flush()


@pytest.mark.parametrize("mistake", ["unknown adapter", "prompt far over the context", "id one past the vocabulary"])
def test_a_mistake_in_a_stream(server: Server, mistake: str) -> None:
    """A stream has begun with 200 before the mistake is seen: its first event is the error."""
    request = {**server.body(PROMPT, "plan", stream=True), **BAD[mistake]}
    answer = server.http.post("/generate", json=request, timeout=20)
    if answer.status_code == 200:
        first = answer.text.splitlines()[0]
        assert first.startswith("data: ")
        assert '"error"' in first
        assert '"code":400' in first.replace(" ", "")
    else:
        assert 400 <= answer.status_code < 500
    server.generate(PROMPT, "plan")


def test_a_body_that_is_no_json(server: Server) -> None:
    answer = server.http.post("/generate", content=b"{not json", headers={"Content-Type": "application/json"})
    assert 400 <= answer.status_code < 500
    server.generate(PROMPT, "plan")


def test_an_unknown_model_of_the_openai_interface(server: Server) -> None:
    """`served:adapter` is how OpenAI's clients name an adapter."""
    served = server.http.get("/v1/models").json()["data"][0]["id"]
    body = {"prompt": "a", "max_tokens": 4, "temperature": 0}
    good = server.http.post("/v1/completions", json={**body, "model": f"{served}:plan"})
    assert good.status_code == 200, good.text
    bad = server.http.post("/v1/completions", json={**body, "model": f"{served}:nobody"})
    assert 400 <= bad.status_code < 500, bad.text
    assert "nobody" in bad.text
