"""The graph that the graphs' tests share: two agents take turns until a round says that it is over."""

from __future__ import annotations

import operator
import sys
from pathlib import Path
from typing import Annotated, Any, TypedDict

import sglang as sgl
from langgraph.graph import END, START

from descant.agents.agent import Agent
from descant.runtime.client import Client
from descant.workflows.graph import AgentGraph
from descant.workflows.limits import Limits

GREEDY = {"temperature": 0, "ignore_eos": True}
# Named otherwise than their adapters, so that neither name can stand for the other.
PLANNER = Agent("planner", "plan", "\nThought:", GREEDY)
ACTOR = Agent("actor", "act", "\nAction:", GREEDY)
QUESTION = {"question": "which city is larger, Porto or Lisbon?"}
ROUNDS = 3
FOREVER = 7000  # tokens, for the roomy deployment: seconds on any machine


class State(TypedDict):
    question: str
    thought: str
    action: str
    round: int
    notes: Annotated[list[str], operator.add]


def opening(state: Any) -> str:
    return f"Question: {state['question']}"


def think(s: Any, question: str, round: int = 0) -> dict[str, Any]:
    s += sgl.gen("thought", max_tokens=8)
    return {"round": round + 1}


def do(s: Any, thought: str) -> dict[str, Any]:
    s += sgl.gen("action", max_tokens=5)
    return {"notes": [f"{thought}|{s['action']}"]}


def again(state: State) -> str:
    """Annotated as LangGraph's routers are, with the graph's own state."""
    return "think" if state["round"] < ROUNDS else END


def loop(limits: Limits | None = None, think: Any = think, do: Any = do, again: Any = again) -> AgentGraph:
    """START → think → do → think …, `ROUNDS` times."""
    graph = AgentGraph(State, opening=opening, limits=limits)
    graph.add_step("think", PLANNER, think).add_step("do", ACTOR, do)
    graph.add_edge(START, "think").add_edge("think", "do")
    return graph.add_conditional_edges("do", again, ["think", END])


def single(program: Any, agent: Agent | None = PLANNER, state: type = State, **more: Any) -> AgentGraph:
    """A graph of the one step `only`."""
    graph = AgentGraph(state, opening=opening, **more).add_step("only", agent, program)
    return graph.add_edge(START, "only").add_edge("only", END)


def thread(name: str) -> Any:
    """The config of a run on this thread of a checkpointer."""
    return {"configurable": {"thread_id": name}}


def run_and_report(url: str, checkpoints: Path, report: Path) -> None:
    """In a process that will be killed: run the loop, a line in `report` for each node that is done."""
    app = loop().compile(Client(url), checkpointer=checkpoints)
    # As `descant run` does: by default LangGraph writes checkpoints in a thread, which may lag behind by any number.
    for update in app.stream(QUESTION, thread("run"), stream_mode="updates", durability="sync"):
        with report.open("a") as lines:
            lines.write(f"{next(iter(update))}\n")


if __name__ == "__main__":
    run_and_report(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]))
