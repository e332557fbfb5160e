"""Agents share; callers who ask to be kept apart share nothing."""

from __future__ import annotations

from collections.abc import Callable

import check
import pytest
import tiny
from deployments import on
from engine import Server
from reference import Reference

pytestmark = on("llama")

PROMPT = tiny.random_tokens(40, seed=10)
EVERYONE = [None, *tiny.AGENTS]
ALL_BUT_LAST = len(PROMPT) - 1


@pytest.fixture
def cached(server: Server, reference: Callable[[str], Reference]) -> Callable[..., int]:
    """How many of `PROMPT`'s tokens a request finds in the cache; its answer is checked on the way."""

    def ask(agent: str | None, **key: str) -> int:
        response = server.generate(PROMPT, agent, **key)
        check.output_is_exact(reference("llama"), PROMPT, agent, response)
        return response["meta_info"]["cached_tokens"]

    return ask


@pytest.mark.parametrize("key", ["cache_salt", "extra_key"])
def test_two_callers_share_nothing_and_ones_agents_share_all(cached: Callable[..., int], key: str) -> None:
    for caller in ("alice", "bob"):
        assert cached("plan", **{key: caller}) == 0
        assert [cached(agent, **{key: caller}) for agent in EVERYONE] == [ALL_BUT_LAST] * 4
    assert cached(None) == 0, "a caller without a key reads what one with a key wrote"
    assert [cached(agent) for agent in EVERYONE] == [ALL_BUT_LAST] * 4


def test_salt_and_key_are_two_things(cached: Callable[..., int]) -> None:
    assert cached("plan", cache_salt="alice") == 0
    assert cached("act", extra_key="alice") == 0
    assert cached("act", cache_salt="alice", extra_key="alice") == 0
    assert cached("reflect", cache_salt="alice", extra_key="alice") == ALL_BUT_LAST


@pytest.mark.parametrize("name", tiny.AGENTS)
def test_a_key_that_looks_like_an_adapter_is_only_a_key(cached: Callable[..., int], name: str) -> None:
    assert cached(name) == 0
    assert cached(None, extra_key=name) == 0
    assert cached(name, extra_key=name) == ALL_BUT_LAST
