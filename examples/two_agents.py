"""Two agents and a tool: one chooses what to look up, the other answers from what was found.

With a server of its own (the demo's model, untrained adapters), or with one that is running:

    python examples/two_agents.py

    descant serve --model-path BASE --lora-paths plan=… act=…
    python examples/two_agents.py --server http://127.0.0.1:30000
"""

from __future__ import annotations

import argparse
import operator
from collections.abc import Mapping
from typing import Annotated, Any, TypedDict

from descant import END, START, Agent, AgentGraph, Session, call, gen, select, tool
from descant.workflows.serving import server_or_own

AREAS = {"Portugal": 92_391, "Mongolia": 1_565_000, "Japan": 377_835}


class State(TypedDict, total=False):
    question: str
    country: str  # what to look up next
    known: Annotated[list[str], operator.add]
    answer: str


@tool
def area(country: str) -> str:
    """The area of a country."""
    return f"{country} has {AREAS[country]:,} square kilometres."


def named(question: str) -> list[str]:
    return [country for country in AREAS if country in question]


# Three programs of SGLang's. What they take beside `s` are keys of the state, and so is what they return.


def choose(s: Any, question: str, known: list[str]) -> dict[str, str]:
    missing = [country for country in named(question) if country not in known]
    s += " I need the area of" + select("country", [f" {country}" for country in missing]) + ".\n"
    return {"country": s["country"].strip()}


def look_up(s: Any, country: str) -> dict[str, list[str]]:
    s += f"Observation: {call(area, country).text}\n"
    return {"known": [country]}


def conclude(s: Any, question: str) -> dict[str, str]:
    s += gen("answer", regex=f" ({'|'.join(named(question))})", max_tokens=8) + "\n"
    return {"answer": s["answer"].strip()}


def opening(state: Mapping[str, Any]) -> list[dict[str, str]]:
    return [
        {"role": "system", "content": "Answer the question. Look up the area of each country first."},
        {"role": "user", "content": state["question"]},
    ]


def next_step(state: Mapping[str, Any]) -> str:
    return "conclude" if set(named(state["question"])) <= set(state["known"]) else "choose"


graph = AgentGraph(State, opening=opening)
graph.add_step("choose", Agent("planner", adapter="plan", cue="Thought:"), choose)
graph.add_step("look_up", None, look_up)  # no agent: it only writes
graph.add_step("conclude", Agent("actor", adapter="act", cue="Answer:"), conclude)
graph.add_edge(START, "choose").add_edge("choose", "look_up").add_edge("conclude", END)
graph.add_conditional_edges("look_up", next_step, ["choose", "conclude"])


def main() -> None:
    parser = argparse.ArgumentParser(description="Two agents and a tool.")
    parser.add_argument("--server", help="address of a running server; without it one is started")
    parser.add_argument("--question", default="Which country is larger, Portugal or Mongolia?")
    args = parser.parse_args()
    if not named(args.question):
        parser.error(f"name some of {', '.join(AREAS)} in the question")
    with server_or_own(args.server) as url:
        state = graph.compile(url).invoke({"question": args.question})
        with Session(url, state["ids"]) as session:
            print(session.text())
    print(f"Answer: {state['answer']}\n")
    for turn in (turn for step in state["steps"] for turn in step["turns"]):
        print(
            f"{turn['agent']:8} read {turn['prompt_tokens']:4} tokens: {turn['cached_tokens']:4} from the cache, "
            f"{turn['cross_agent']:4} of them left there by the other agent"
        )


if __name__ == "__main__":
    main()
