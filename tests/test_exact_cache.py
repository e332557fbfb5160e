"""What one agent has processed serves every other: counted to the token, and exact."""

from __future__ import annotations

from typing import Any

import check
import pytest
import tiny
from deployments import on
from engine import Server
from reference import Reference

pytestmark = on("llama", "qwen3")

PROMPT = tiny.random_tokens(50, seed=3)
READERS = [None, *tiny.AGENTS]


def whole_pages(tokens: int, page: int) -> int:
    return tokens // page * page


def cached(response: dict[str, Any]) -> int:
    return response["meta_info"]["cached_tokens"]


@pytest.mark.parametrize("writer", READERS)
def test_a_whole_prompt(server: Server, ours: Reference, page: int, writer: str | None) -> None:
    """Whoever came first, everyone else computes only the prompt's last token again."""
    first = server.generate(PROMPT, writer)
    assert cached(first) == 0
    for reader in READERS:
        response = server.generate(PROMPT, reader)
        check.output_is_exact(ours, PROMPT, reader, response)
        assert cached(response) == whole_pages(len(PROMPT) - 1, page)


@pytest.mark.parametrize(("writer", "reader"), [("plan", "act"), ("plan", None), (None, "act")])
def test_a_part_of_a_prompt(server: Server, ours: Reference, page: int, writer: str | None, reader: str | None) -> None:
    server.generate(PROMPT, writer)
    other = PROMPT[:37] + tiny.random_tokens(20, seed=4)
    response = server.generate(other, reader)
    check.output_is_exact(ours, other, reader, response)
    assert cached(response) == whole_pages(37, page)


def test_turns_on_one_trajectory(server: Server, ours: Reference, page: int) -> None:
    """Each turn finds its predecessors' prompts and outputs; only the last sampled token was never processed."""
    trajectory = list(PROMPT)
    known = 0
    for turn, agent in enumerate(["plan", "act", None, "reflect", "plan", "act"]):
        response = server.generate(trajectory, agent, new_tokens=11)
        assert cached(response) == whole_pages(known, page)
        check.output_is_exact(ours, trajectory, agent, response)
        trajectory += response["output_ids"]
        known = len(trajectory) - 1
        trajectory += tiny.random_tokens(7, seed=100 + turn)


def test_input_logprobs_from_a_cached_prefix(server: Server, ours: Reference, page: int) -> None:
    """The prefix before `logprob_start_len` comes from the cache; the rest is computed again for its logits."""
    server.generate(PROMPT, "plan")
    for start in (0, 33, 48):
        response = server.generate(PROMPT, "act", logprob_start_len=start)
        check.input_is_exact(ours, PROMPT, "act", response, start=start)
        check.output_is_exact(ours, PROMPT, "act", response)
        assert cached(response) == whole_pages(start, page)


def test_scoring_another_agents_output(server: Server, ours: Reference) -> None:
    """Tokens one agent chose, scored by the others through their own adapters."""
    said = server.generate(PROMPT, "plan", new_tokens=20)["output_ids"]
    start = len(PROMPT) - 1
    for critic in ("reflect", None):
        response = server.generate([*PROMPT, *said], critic, new_tokens=1, logprob_start_len=start)
        check.input_is_exact(ours, [*PROMPT, *said], critic, response, start=start)
