"""What programs and plain nodes read of a graph's state, and set in it."""

from __future__ import annotations

import operator
from typing import Annotated, Any, TypedDict

import sglang as sgl
from deployments import on
from engine import Server
from graphs import ACTOR, PLANNER, QUESTION, State, do, loop, opening, single, think, thread
from langgraph.graph import END, START
from langgraph.types import Command

from descant.agents.agent import Agent
from descant.runtime.client import Client
from descant.workflows.graph import AgentGraph
from descant.workflows.limits import Limits


class Judged(TypedDict):
    question: str
    topic: str
    thought: str
    verdict: str
    seen: list[str]
    total: Annotated[int, operator.add]


@on("llama")
def test_keys_are_set_by_gen_by_dicts_and_by_commands(server: Server) -> None:
    def study(s: Any, question: str, state: Any, topic: str = "cities") -> dict[str, Any]:
        s += f" about {topic}:" + sgl.gen("thought", max_tokens=6) + sgl.gen("unknown", max_tokens=2)
        return {"total": 3, "seen": sorted(state)}

    def verdict(s: Any, thought: str) -> str:
        s += sgl.gen("thought", max_tokens=3)
        return f"after {thought}"

    def leave(s: Any) -> Command[Any]:
        s += sgl.gen("topic", max_tokens=2)
        return Command(goto="plain", update={"total": 4})

    def plain(state: Judged) -> dict[str, Any]:
        return {"total": state["total"] * 10}

    def never(s: Any) -> None:
        raise AssertionError

    graph = AgentGraph(Judged, opening=opening)
    graph.add_step("study", PLANNER, study).add_step("verdict", ACTOR, verdict)
    graph.add_step("leave", PLANNER, leave, destinations=("plain", "never")).add_node("plain", plain)
    graph.add_step("never", ACTOR, never)
    graph.add_edge(START, "study").add_edge("study", "verdict").add_edge("verdict", "leave").add_edge("plain", END)
    app = graph.compile(server.url)
    state = app.invoke(QUESTION)
    turns = [[turn["text"] for turn in step["turns"]] for step in state["steps"]]
    assert [len(each) for each in turns] == [0, 2, 1, 1]
    assert state["seen"] == ["ended", "ids", "question", "steps", "total"]
    assert state["verdict"] == f"after {turns[1][0]}"
    assert state["thought"] == turns[2][0]
    assert state["topic"] == turns[3][0]
    assert state["total"] == 7 + 70
    assert "unknown" not in state
    assert {edge.target for edge in app.get_graph().edges if edge.source == "leave"} == {"plain", "never"}
    # A default gives way to what the state has.
    given = app.invoke({**QUESTION, "topic": "rivers"})
    assert given["ids"] != state["ids"]


@on("llama")
def test_steps_of_nobody_write_and_openings_may_depend_on_the_state(server: Server) -> None:
    def write(s: Any, question: str) -> None:
        s += f"\nNote: {question}"

    client = Client(server.url)
    tokenize = client.tokenize
    state = single(write, agent=None).compile(client).invoke(QUESTION)
    written = tokenize("\nNote: which city is larger, Porto or Lisbon?")
    assert state["ids"] == tokenize(opening(QUESTION)) + written
    assert [(step["agent"], step["tokens"], step["turns"]) for step in state["steps"][1:]] == [(None, len(written), [])]

    # Messages, as the model's chat template writes them.
    messages = [{"role": "user", "content": "Hello"}]
    graph = AgentGraph(State, opening=lambda _: messages).add_step("only", None, write).add_edge(START, "only")
    assert graph.compile(client).invoke(QUESTION)["ids"] == client.tokenize_chat(messages) + written

    # An agent without a cue, an opening that is one text for all, and the base model.
    def speak(s: Any) -> None:
        s += sgl.gen("x", max_tokens=2)

    graph = AgentGraph(opening="Hello").add_step("only", Agent("base"), speak)
    state = graph.add_edge(START, "only").compile(client).invoke({})
    assert state["steps"][1]["turns"][0]["adapter"] is None
    assert state["steps"][1]["turns"][0]["prompt_tokens"] == len(tokenize("Hello"))


@on("llama")
def test_a_step_may_forget_the_trajectorys_end(server: Server) -> None:
    """The ids go on from where `keep` says, and what stands before is still cached."""
    graph = AgentGraph(State, opening=opening)
    graph.add_step("think", PLANNER, think).add_step("do", ACTOR, do, keep=lambda state: state["steps"][0]["tokens"])
    graph.add_edge(START, "think").add_edge("think", "do").add_edge("do", END)
    client = Client(server.url)
    state = graph.compile(client).invoke(QUESTION)
    opened, thought, done = state["steps"]
    assert len(state["ids"]) == opened["tokens"] + done["tokens"]
    assert state["ids"][: opened["tokens"]] == client.tokenize(opening(QUESTION))
    assert done["turns"][0]["prompt_tokens"] == opened["tokens"] + len(client.tokenize(ACTOR.cue))
    assert done["turns"][0]["cached_tokens"] >= opened["tokens"]
    assert thought["tokens"] > 0


@on("llama")
def test_a_second_run_on_a_thread_starts_afresh_behind_the_first(server: Server, tmp_path: Any) -> None:
    app = loop(Limits(turns=3)).compile(server.url, checkpointer=tmp_path / "runs.sqlite")
    first = app.invoke(QUESTION, thread("t"))
    assert first["ended"] == "limit of 3 turns"
    second = app.invoke({"question": "and Braga?", "round": 2}, thread("t"))
    assert second["ids"][: len(first["ids"])] == first["ids"]
    assert [step["node"] for step in second["steps"][len(first["steps"]) :]] == ["opening", "think", "do"]
    assert second["ended"] is None
    # The first turn of the second run finds the whole first run in the cache, but for what nobody has processed.
    turn = second["steps"][-2]["turns"][0]
    added = second["steps"][-3]["tokens"] + len(Client(server.url).tokenize(PLANNER.cue))
    assert turn["prompt_tokens"] - turn["cached_tokens"] == added + 1
