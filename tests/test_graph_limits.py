"""Limits: each ends the run where it stands, says so, and loses nothing of what was there."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
import sglang as sgl
from deployments import on
from engine import Server
from graphs import FOREVER, PLANNER, QUESTION, State, loop, opening
from langgraph.graph import START

from descant.workflows.graph import AgentGraph
from descant.workflows.limits import Limits


def forever(_: State) -> str:
    return "think"


@on("llama")
@pytest.mark.parametrize(
    ("limits", "reason", "turns"),
    [
        (Limits(turns=3), "limit of 3 turns", 3),
        (Limits(turns=4), "limit of 4 turns", 4),
        (Limits(turns=0), "limit of 0 turns", 0),
        (Limits(tokens=14), "limit of 14 generated tokens", 3),  # 8 + 5 + 8
        (Limits(context=60), "limit of 60 tokens of context", None),
    ],
)
def test_a_limit_ends_the_run_and_says_so(server: Server, limits: Limits, reason: str, turns: int | None) -> None:
    app = loop(limits, again=forever).compile(server.url)
    state = app.invoke(QUESTION)
    assert state["ended"] == reason
    spent = [turn for step in state["steps"] for turn in step["turns"]]
    if turns is not None:
        assert len(spent) == turns
    else:
        last = state["steps"][-1]["tokens"]
        assert len(state["ids"]) - last < 60 <= len(state["ids"])
    assert sum(step["tokens"] for step in state["steps"]) == len(state["ids"])
    free = loop(Limits(turns=8), again=forever).compile(server.url).invoke(QUESTION)
    assert free["ids"][: len(state["ids"])] == state["ids"]


def slow(s: Any, round: int = 0) -> dict[str, Any]:
    s += sgl.gen("thought", max_tokens=FOREVER if round else 4)
    return {"round": round + 1}


@on("roomy")
@pytest.mark.parametrize("way", ["invoke", "ainvoke"])
def test_seconds_end_a_turn_that_runs(server: Server, way: str) -> None:
    app = loop(Limits(seconds=1.5), think=slow, again=forever).compile(server.url)
    start = time.monotonic()
    state = asyncio.run(app.ainvoke(QUESTION)) if way == "ainvoke" else app.invoke(QUESTION)
    assert time.monotonic() - start < 4
    assert state["ended"] == "limit of 1.5 seconds"
    assert [step["node"] for step in state["steps"]] == ["opening", "think", "do"]
    assert sum(step["tokens"] for step in state["steps"]) == len(state["ids"])
    server.flush()  # nothing runs any more


@on("roomy")
def test_seconds_end_a_turn_in_a_fork_too(server: Server) -> None:
    def fork(s: Any) -> None:
        forks = s.fork(2)
        forks += sgl.gen("thought", max_tokens=FOREVER)
        forks.join()

    state = loop(Limits(seconds=1), think=fork).compile(server.url).invoke(QUESTION)
    assert state["ended"] == "limit of 1 seconds"
    assert len(state["steps"]) == 1
    server.flush()


@on("llama")
def test_a_plain_node_can_end_a_run_and_steps_go_no_further(server: Server) -> None:
    def stop(state: Any) -> dict[str, Any]:
        return {"ended": "enough" if state["round"] == 2 else None}

    def think(s: Any, round: int = 0) -> dict[str, Any]:
        s += sgl.gen("thought", max_tokens=2)
        return {"round": round + 1}

    graph = AgentGraph(State, opening=opening)
    graph.add_step("think", PLANNER, think).add_node("stop", stop).add_step("more", PLANNER, lambda s: None)
    graph.add_edge(START, "think").add_edge("think", "stop").add_edge("stop", "more")
    graph.add_conditional_edges("more", forever, ["think"])
    state = graph.compile(server.url).invoke(QUESTION)
    assert state["ended"] == "enough"
    assert [step["node"] for step in state["steps"]] == ["opening", "think", "more", "think"]
