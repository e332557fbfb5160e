"""The estimate of `nonshared`: against its definition, and against a server that shares nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tiny
from engine import Server
from graphs import QUESTION, loop
from hypothesis import given
from hypothesis import strategies as st

from descant.runtime.client import Client
from descant.workflows.alone import Alone
from descant.workflows.replay import replay

ids = st.lists(st.integers(0, 2), min_size=1, max_size=8)


def by_definition(prompt: list[int], earlier: list[list[int]]) -> int:
    """The longest proper prefix of the prompt with which something that was processed begins."""
    found = [n for n in range(len(prompt)) if any(done[:n] == prompt[:n] and len(done) >= n for done in earlier)]
    return max(found, default=0)


@given(st.lists(st.tuples(ids, ids, st.sampled_from([None, "plan", "act"])), max_size=8))
def test_it_is_the_longest_prefix_of_the_adapters_own(turns: list[tuple[list[int], list[int], str | None]]) -> None:
    alone = Alone()
    processed: dict[str | None, list[list[int]]] = {}
    for prompt, output, adapter in turns:
        record: dict[str, Any] = {"prompt_tokens": len(prompt), "output_ids": output, "adapter": adapter}
        own = processed.setdefault(adapter, [])
        assert alone.turn([*prompt, 7, 7], record) == by_definition(prompt, own)
        own.append([*prompt, *output[:-1]])


def test_a_server_that_shares_nothing_finds_as_much(
    serve: Callable[..., Server], checkpoint: Callable[[str], tiny.Checkpoint]
) -> None:
    """Planner, actor, planner, …: each finds what it had itself, measured by a replay."""
    server = serve(checkpoint("llama"), max_loras_per_batch=6, max_lora_rank=16)
    with Client(server.url) as client:
        state = loop().compile(client).invoke(QUESTION)
        server.flush()
        measured = [turn["cached_tokens"] for turn in replay(client, state)]
    alone = Alone()
    turns = [turn for step in state["steps"] for turn in step["turns"]]
    assert [alone.turn(state["ids"], turn) for turn in turns] == measured
    assert measured[:2] == [0, 0]
    assert min(measured[2:]) > 0
    assert {turn["adapter"] for turn in turns} == {"plan", "act"}
