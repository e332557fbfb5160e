"""Runs that wait for a human, and go on."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
import sglang as sgl
from deployments import on
from engine import Server
from graphs import ACTOR, PLANNER, QUESTION, State, do, loop, opening, think, thread
from langgraph.graph import END, START
from langgraph.types import Command, interrupt

from descant.runtime.client import Client
from descant.runtime.protocol import detokenize
from descant.workflows.graph import AgentGraph


@on("llama")
@pytest.mark.parametrize("answer", ["yes", "no"])
def test_a_plain_node_asks_for_approval(server: Server, tmp_path: Path, answer: str) -> None:
    def approve(state: State) -> Command[Any]:
        said = interrupt({"approve": state["thought"]})
        return Command(goto="do" if said == "yes" else END, update={"notes": [said]})

    graph = AgentGraph(State, opening=opening).add_step("think", PLANNER, think).add_step("do", ACTOR, do)
    graph.add_node("approve", approve, destinations=("do", END))
    graph.add_edge(START, "think").add_edge("think", "approve").add_edge("do", END)
    file = tmp_path / "runs.sqlite"
    waiting = graph.compile(server.url, checkpointer=file).invoke(QUESTION, thread("t"))
    assert waiting["__interrupt__"][0].value == {"approve": waiting["thought"]}

    # Another program goes on, later.
    state = graph.compile(server.url, checkpointer=file).invoke(Command(resume=answer), thread("t"))
    assert state["notes"][0] == answer
    assert [step["node"] for step in state["steps"]] == ["opening", "think", *(["do"] if answer == "yes" else [])]
    assert state["ids"][: len(waiting["ids"])] == waiting["ids"]
    assert state["steps"][:2] == waiting["steps"]


@on("llama")
@pytest.mark.parametrize("way", ["invoke", "ainvoke"])
def test_a_program_asks_before_it_generates(server: Server, tmp_path: Path, way: str) -> None:
    def ask(s: Any, question: str) -> None:
        s += f" told {interrupt(question)}:" + sgl.gen("action", max_tokens=5)

    def run(app: Any, given: Any) -> Any:
        return asyncio.run(app.ainvoke(given, thread(way))) if way == "ainvoke" else app.invoke(given, thread(way))

    client = Client(server.url)
    app = loop(do=ask, again=lambda _: END).compile(client, checkpointer=tmp_path / "runs.sqlite")
    waiting = run(app, QUESTION)
    assert waiting["__interrupt__"][0].value == QUESTION["question"]
    assert [step["node"] for step in waiting["steps"]] == ["opening", "think"]
    state = run(app, Command(resume="Lisbon"))
    assert state["ids"][: len(waiting["ids"])] == waiting["ids"]
    added = client.call(detokenize(state["ids"][len(waiting["ids"]) :]))
    assert added == f"\nAction: told Lisbon:{state['action']}"
    turn = state["steps"][-1]["turns"][0]
    assert (
        turn["prompt_tokens"] - turn["cached_tokens"]
        == len(client.tokenize(ACTOR.cue)) + len(client.tokenize(" told Lisbon:")) + 1
    )


@on("llama")
def test_a_run_can_stop_before_a_step_and_its_state_be_changed(server: Server, tmp_path: Path) -> None:
    app = loop().compile(server.url, checkpointer=tmp_path / "runs.sqlite", interrupt_before=["do"])
    first = app.invoke(QUESTION, thread("t"))
    assert app.get_state(thread("t")).next == ("do",)
    app.update_state(thread("t"), {"round": 3, "thought": "changed"})
    state = app.invoke(None, thread("t"))
    assert state["notes"] == [f"changed|{state['action']}"]
    assert [step["node"] for step in state["steps"]] == ["opening", "think", "do"]
    assert state["ids"][: len(first["ids"])] == first["ids"]
    assert app.get_state(thread("t")).next == ()
    # Every moment of the run is there to go back to.
    (opened,) = [past for past in app.get_state_history(thread("t")) if past.next == ("think",)]
    again = app.invoke(None, opened.config)
    assert again["ids"] == first["ids"]
