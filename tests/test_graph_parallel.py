"""Branches that part and join on one trajectory."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import sglang as sgl
from deployments import on
from engine import Server
from graphs import GREEDY, QUESTION, State, opening
from langgraph.graph import END, START
from langgraph.types import Send

from descant.agents.agent import Agent
from descant.runtime.client import Client
from descant.runtime.protocol import detokenize
from descant.workflows.graph import AgentGraph

ADAPTERS = {"a": "plan", "b": "act", "c": "reflect"}


def agent(name: str) -> Agent:
    return Agent(name, ADAPTERS.get(name, "plan"), f"\n{name}:", GREEDY)


def speak(s: Any) -> None:
    s += sgl.gen("said", max_tokens=6)


@on("llama")
@pytest.mark.parametrize("order", ["abc", "cab"])
def test_parts_stand_in_the_order_of_names_and_each_goes_on_from_the_fork(server: Server, order: str) -> None:
    """Whichever was added, or is done, first: the first of each other order is made to end last."""
    others_done = threading.Barrier(3, timeout=20)

    def last(s: Any) -> None:
        others_done.wait()
        speak(s)

    def early(s: Any) -> None:
        speak(s)
        s["said"]
        others_done.wait()

    graph = AgentGraph(State, opening=opening)
    for name in order:
        graph.add_step(name, agent(name), last if name == "a" else early).add_edge(START, name)
    graph.add_step("join", agent("join"), speak).add_edge(list(order), "join").add_edge("join", END)
    client = Client(server.url)
    state = graph.compile(client).invoke(QUESTION)

    opened, *parts, joined = state["steps"]
    assert [part["node"] for part in parts] == ["a", "b", "c"]
    assert [part["turns"][0]["adapter"] for part in parts] == ["plan", "act", "reflect"]
    assert sum(step["tokens"] for step in state["steps"]) == len(state["ids"])
    at = opened["tokens"]
    for part in parts:
        cue = client.tokenize(f"\n{part['node']}:")
        turn = part["turns"][0]
        assert turn["prompt_tokens"] == opened["tokens"] + len(cue)
        ids = state["ids"][at : at + part["tokens"]]
        assert ids[: len(cue)] == cue
        assert client.call(detokenize(ids[len(cue) :])) == turn["text"]
        alone = client.generate(
            [*state["ids"][: opened["tokens"]], *cue],
            adapter=turn["adapter"],
            sampling_params={**GREEDY, "max_new_tokens": 6},
        )
        assert alone.output_ids == ids[len(cue) :]
        at += part["tokens"]
    # Only the first part is where it was computed.
    (turn,) = joined["turns"]
    assert turn["cached_tokens"] == opened["tokens"] + parts[0]["tokens"] - 1
    assert turn["prompt_tokens"] == at + len(client.tokenize("\njoin:"))


@on("llama")
def test_what_runs_next_reads_all_that_was_said_in_any_branch(server: Server) -> None:
    graph = AgentGraph(State, opening=opening)
    for name in "abc":
        graph.add_step(name, agent(name), speak)
    graph.add_edge(START, "a").add_edge(START, "b").add_edge("b", "c").add_edge("a", END).add_edge("c", END)
    client = Client(server.url)
    state = graph.compile(client).invoke(QUESTION)
    assert [step["node"] for step in state["steps"]] == ["opening", "a", "b", "c"]
    before = len(state["ids"]) - state["steps"][-1]["tokens"]
    assert state["steps"][-1]["turns"][0]["prompt_tokens"] == before + len(client.tokenize("\nc:"))


@on("llama")
def test_an_agent_can_be_sent_to_several_tasks(server: Server) -> None:
    def tip(s: Any, question: str) -> dict[str, Any]:
        s += f" {question}" + sgl.gen("said", max_tokens=4)
        return {"notes": [question]}

    topics = ["zoo", "art", "bus"]
    graph = AgentGraph(State, opening=opening).add_step("tip", agent("a"), tip).add_edge("tip", END)
    graph.add_conditional_edges(START, lambda s: [Send("tip", {**s, "question": topic}) for topic in topics], ["tip"])
    client = Client(server.url)
    state = graph.compile(client).invoke(QUESTION)
    assert state["notes"] == topics
    assert len(state["steps"]) == 4
    text = client.call(detokenize(state["ids"]))
    assert text.index("zoo") < text.index("art") < text.index("bus")
