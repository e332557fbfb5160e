"""Constrained output: the agent chooses, by its own log-probabilities, among the tokens the grammar allows."""

from __future__ import annotations

import json
from collections.abc import Callable

import check
import pytest
import regex  # type: ignore[import-untyped]
import tiny
import torch
from deployments import on
from engine import Server
from reference import Reference
from transformers import AutoTokenizer, PreTrainedTokenizerBase

pytestmark = on("llama")

PROMPT = tiny.random_tokens(30, seed=7)
AGENTS = [None, "plan", "act"]
PATTERN = r'Action: (search|look)\("[a-e]{2,6}"\)'
SCHEMA = {
    "type": "object",
    "properties": {"city": {"enum": ["Lisbon", "Porto"]}, "population": {"type": "integer", "maximum": 99999}},
    "required": ["city", "population"],
}


@pytest.fixture
def tokenizer(checkpoint: Callable[[str], tiny.Checkpoint]) -> PreTrainedTokenizerBase:
    return AutoTokenizer.from_pretrained(checkpoint("llama").model)


def allowed(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    """The ids that keep `text` on the way to a match of `PATTERN`; the end token only where it is one."""
    ids = [
        token
        for token in range(2, tiny.VOCAB_SIZE)
        if regex.fullmatch(PATTERN, text + tokenizer.decode([token]), partial=True)
    ]
    return [*ids, tokenizer.eos_token_id] if regex.fullmatch(PATTERN, text) else ids


@pytest.mark.parametrize("agent", AGENTS)
def test_regex(server: Server, ours: Reference, tokenizer: PreTrainedTokenizerBase, agent: str | None) -> None:
    """Each token is the likeliest of those allowed, its log-probability normalised over them."""
    response = server.generate(PROMPT, agent, new_tokens=60, sampling={"regex": PATTERN, "ignore_eos": False})
    assert regex.fullmatch(PATTERN, response["text"]), response["text"]

    output = response["output_ids"]
    free = ours.icarus([*PROMPT, *output], agent)[len(PROMPT) - 1 : -1]
    text = ""
    for row, token, (reported, *_) in zip(free, output, response["meta_info"]["output_token_logprobs"], strict=True):
        ids = allowed(tokenizer, text)
        assert token in ids
        among = row[ids].log_softmax(dim=-1)
        assert abs(reported - among[ids.index(token)].item()) <= check.TOLERANCE
        assert abs(reported - among.max().item()) <= check.TOLERANCE
        text += tokenizer.decode([token])


@pytest.mark.parametrize("agent", AGENTS)
def test_json_schema(server: Server, ours: Reference, agent: str | None) -> None:
    """The output is valid; scored again without the grammar, the path chosen has the agent's own log-probabilities."""
    response = server.generate(
        PROMPT, agent, new_tokens=80, sampling={"json_schema": json.dumps(SCHEMA), "ignore_eos": False}
    )
    value = json.loads(response["text"])
    assert value["city"] in ("Lisbon", "Porto")
    assert value["population"] <= 99999

    path = [*PROMPT, *response["output_ids"]]
    scored = server.generate(path, agent, new_tokens=1, logprob_start_len=len(PROMPT) - 1)
    check.input_is_exact(ours, path, agent, scored, start=len(PROMPT) - 1)
    free = torch.tensor([entry[0] for entry in scored["meta_info"]["input_token_logprobs"][1:]])
    constrained = torch.tensor([entry[0] for entry in response["meta_info"]["output_token_logprobs"]])
    assert (constrained >= free - check.TOLERANCE).all(), "a smaller choice cannot make a token less likely"
