"""A loop of two agents: what each finds in the cache, and that every way of running it is the same run."""

from __future__ import annotations

import asyncio
import operator
import threading
from typing import Any

import sglang as sgl
from deployments import on
from engine import Server, together
from graphs import ACTOR, PLANNER, QUESTION, ROUNDS, loop

from descant.runtime.client import Client
from descant.runtime.protocol import detokenize


def outcome(state: dict[str, Any]) -> dict[str, Any]:
    """All of a state but its times, and what was found in the cache."""
    steps = [
        {
            **{key: step[key] for key in ("node", "agent", "tokens")},
            "turns": [(turn["text"], turn["prompt_tokens"], turn["output_tokens"]) for turn in step["turns"]],
        }
        for step in state["steps"]
    ]
    return {**state, "steps": steps}


@on("llama")
def test_each_agent_computes_what_was_added_and_one_token(server: Server) -> None:
    cues = {agent.name: len(Client(server.url).tokenize(agent.cue)) for agent in (PLANNER, ACTOR)}
    before = server.info()["internal_states"][0]["kv_sharing_totals"]
    state = loop().compile(server.url).invoke(QUESTION)
    after = server.info()["internal_states"][0]["kv_sharing_totals"]

    steps = state["steps"]
    assert [step["node"] for step in steps] == ["opening", *["think", "do"] * ROUNDS]
    assert [step["agent"] for step in steps] == [None, *["planner", "actor"] * ROUNDS]
    assert sum(step["tokens"] for step in steps) == len(state["ids"])
    turns = [turn for step in steps for turn in step["turns"]]
    assert [turn["adapter"] for turn in turns] == ["plan", "act"] * ROUNDS
    read = steps[0]["tokens"]
    for step in steps[1:]:
        (turn,) = step["turns"]
        cue = cues[step["agent"]]
        assert step["tokens"] == cue + turn["output_tokens"]
        assert turn["prompt_tokens"] == read + cue
        if read > steps[0]["tokens"]:
            assert turn["prompt_tokens"] - turn["cached_tokens"] == cue + 1
            assert turn["cross_agent"] > 0
        read += step["tokens"]
    # The server counted the same.
    for ours, theirs in (
        ("prompt_tokens", "prompt_tokens"),
        ("cached_tokens", "cached_tokens"),
        ("cross_agent", "cross_agent_tokens"),
    ):
        assert sum(turn[ours] for turn in turns) == after[theirs] - before[theirs]
    # Ids as they were sampled, which the same text would not give again.
    text = Client(server.url).call(detokenize(state["ids"]))
    assert text.startswith(f"Question: {QUESTION['question']}\nThought:")
    assert Client(server.url).tokenize(text) != state["ids"]
    said = [turn["text"] for turn in turns]
    assert state["notes"] == ["|".join(said[at : at + 2]) for at in range(0, 2 * ROUNDS, 2)]
    assert (state["thought"], state["action"], state["round"], state["ended"]) == (*said[-2:], ROUNDS, None)


@on("llama")
def test_every_way_to_run_is_the_same_run(server: Server) -> None:
    app = loop().compile(server.url)
    expected = outcome(app.invoke(QUESTION))

    def last(states: list[Any]) -> dict[str, Any]:
        return outcome(states[-1])

    async def by_ainvoke() -> dict[str, Any]:
        return outcome(await app.ainvoke(QUESTION))

    async def by_astream() -> dict[str, Any]:
        return last([state async for state in app.astream(QUESTION, stream_mode="values")])

    assert asyncio.run(by_ainvoke()) == expected
    assert asyncio.run(by_astream()) == expected
    assert last(list(app.stream(QUESTION, stream_mode="values"))) == expected


@on("llama")
def test_runs_at_once_do_not_mix(server: Server) -> None:
    app = loop().compile(server.url)
    questions = [{"question": f"number {number}?"} for number in range(4)]
    expected = [outcome(app.invoke(question)) for question in questions]
    assert len({tuple(state["ids"]) for state in expected}) == len(questions)
    assert [outcome(s) for s in together([lambda q=q: app.invoke(q) for q in questions])] == expected

    async def at_once() -> list[Any]:
        return await asyncio.gather(*(app.ainvoke(question) for question in questions))

    assert list(map(outcome, asyncio.run(at_once()))) == expected


@on("llama")
def test_async_runs_do_not_wait_for_threads(server: Server) -> None:
    """More runs at once than asyncio has threads of its own on a small machine: 2 cores, 6 threads."""
    at_once = 40
    meet = threading.Barrier(at_once, timeout=20)

    def think(s: Any) -> dict[str, Any]:
        meet.wait()
        s += sgl.gen("thought", max_tokens=1)
        return {"round": ROUNDS}

    app = loop(think=think).compile(server.url)

    async def run() -> list[Any]:
        return await asyncio.gather(*(app.ainvoke(QUESTION) for _ in range(at_once)))

    assert len({tuple(state["ids"]) for state in asyncio.run(run())}) == 1


def test_the_drawing_has_what_was_described() -> None:
    app = loop().compile("http://127.0.0.1:1")
    drawn = app.get_graph()
    edges = {(edge.source, edge.target, edge.conditional) for edge in drawn.edges}
    assert edges == {
        ("__start__", "opening", False),
        ("opening", "think", False),
        ("think", "do", False),
        ("do", "think", True),
        ("do", "__end__", True),
    }
    assert set(drawn.nodes) == {name for edge in edges for name in operator.itemgetter(0, 1)(edge)}
    text = drawn.draw_mermaid()
    for line in ("__start__ --> opening;", "opening --> think;", "think --> do;", "do -.-> think;", "do -.-> __end__;"):
        assert line in text
