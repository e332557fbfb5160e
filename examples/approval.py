"""A person approves what an agent wants to do. The run waits in an SQLite file, for seconds or for days.

With a server of its own (the demo's model, untrained adapters), or with one that is running:

    python examples/approval.py

    descant serve --model-path BASE --lora-paths plan=… act=… reflect=…
    python examples/approval.py --server http://127.0.0.1:30000

Leave it at its question (Ctrl-D), and start it again: it asks again, and nothing that the agents said is lost.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypedDict

from langgraph.types import Command, interrupt

from descant import END, START, Agent, AgentGraph, Session, call, gen, tool
from descant.workflows.serving import server_or_own

REQUEST = "My suitcase arrived broken. It cost 80 euros."


class State(TypedDict, total=False):
    question: str
    amount: str
    approved: bool


@tool
def refund(euros: int) -> str:
    """Pay money back."""
    return f"{euros} euros were paid back."


def think(s: Any) -> None:
    s += gen("thought", max_tokens=32, regex=r" [^\n]+\n", stop="\n") + "\n"


def propose(s: Any) -> None:
    s += " Refund[" + gen("amount", max_tokens=3, regex=r"[1-9][0-9]?") + "]\n"


def approve(state: Mapping[str, Any]) -> dict[str, bool]:
    """A node of LangGraph's own. A node begins anew when it goes on after interrupt(): so no agent speaks in it."""
    return {"approved": interrupt(f"Refund {state['amount']} euros?")}


def pay(s: Any, amount: str) -> None:
    s += f"Observation: {call(refund, amount).text}\n"


def refuse(s: Any) -> None:
    s += "Observation: The manager said no.\n"


def opening(state: Mapping[str, Any]) -> list[dict[str, str]]:
    return [
        {"role": "system", "content": "You work for a shop. Think, propose a refund, and answer the customer."},
        {"role": "user", "content": state["question"]},
    ]


greedy = {"temperature": 0}
graph = AgentGraph(State, opening=opening)
graph.add_step("think", Agent("planner", adapter="plan", cue="Thought:", sampling=greedy), think)
graph.add_step("propose", Agent("actor", adapter="act", cue="Action:", sampling=greedy), propose)
graph.add_node("approve", approve)
graph.add_step("pay", None, pay)
graph.add_step("refuse", None, refuse)
graph.add_step("answer", Agent("writer", adapter="reflect", cue="Answer:", sampling=greedy), think)
graph.add_edge(START, "think").add_edge("think", "propose").add_edge("propose", "approve")
graph.add_conditional_edges("approve", lambda state: "pay" if state["approved"] else "refuse", ["pay", "refuse"])
graph.add_edge("pay", "answer").add_edge("refuse", "answer").add_edge("answer", END)


def ask(question: str) -> bool:
    try:
        return input(f"{question} [y/N] ").strip().lower() in ("y", "yes")
    except EOFError:
        sys.exit("\nNot answered. Start this again to be asked again.")


def main() -> None:
    parser = argparse.ArgumentParser(description="A person approves what an agent wants to do.")
    parser.add_argument("--server", help="address of a running server; without it one is started")
    parser.add_argument("--checkpoints", type=Path, default=Path("approval.sqlite"), help="where runs are kept")
    parser.add_argument("--thread", default="1", help="which of them")
    parser.add_argument("--yes", action="store_true", help="approve without asking")
    args = parser.parse_args()
    with server_or_own(args.server) as url:
        app = graph.compile(url, checkpointer=args.checkpoints)
        thread: Any = {"configurable": {"thread_id": args.thread}}
        waiting = app.get_state(thread).next  # nodes that are still to run: an earlier call was left in the middle
        state = app.invoke(None if waiting else {"question": REQUEST}, thread)
        while asked := state.get("__interrupt__"):
            with Session(url, state["ids"]) as session:
                print(session.text())
            state = app.invoke(Command(resume=args.yes or ask(asked[0].value)), thread)
        with Session(url, state["ids"]) as session:
            print(session.text())


if __name__ == "__main__":
    main()
