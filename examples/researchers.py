"""Researchers who work in parallel, and a writer who reads what all of them wrote.

With a server of its own (the demo's model, untrained adapters), or with one that is running:

    python examples/researchers.py

    descant serve --model-path BASE --lora-paths plan=… act=… reflect=…
    python examples/researchers.py --server http://127.0.0.1:30000
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Mapping
from typing import Any, TypedDict

from descant import END, START, Agent, AgentGraph, Session, gen
from descant.workflows.serving import server_or_own

# By name, since that is the order in which the parts of parallel steps stand.
SOURCES = {
    "food": "In Lisbon people eat grilled sardines in June, salted cod all the year round, and small custard tarts, "
    "which the monks of Belém baked first.",
    "history": "Lisbon was a Phoenician port, then Roman, then Moorish. An earthquake destroyed it on the first of "
    "November 1755, and the Marquis of Pombal had it built again with straight streets.",
    "music": "Fado is sung in the taverns of Alfama and Mouraria, with a Portuguese guitar of twelve strings; Amália "
    "Rodrigues made it known in all the world.",
}


class State(TypedDict, total=False):
    question: str
    food: str
    history: str
    music: str


def research(topic: str) -> Callable[[Any], None]:
    def program(s: Any) -> None:
        s += f" {SOURCES[topic]}\nNote on {topic}:"
        s += gen(topic, max_tokens=24, regex=r" [^\n]+\n", stop="\n") + "\n"  # the state's key of this name

    return program


def write(s: Any) -> None:
    s += gen("line", max_tokens=32, regex=r" [^\n]+\n", stop="\n") + "\n"


def opening(state: Mapping[str, Any]) -> list[dict[str, str]]:
    return [
        {"role": "system", "content": "Plan, read the sources, take notes, and report."},
        {"role": "user", "content": state["question"]},
    ]


greedy = {"temperature": 0}
graph = AgentGraph(State, opening=opening)
# The lead speaks before the ways part: what it has read is in the cache for all researchers.
graph.add_step("lead", Agent("lead", adapter="plan", cue="Plan:", sampling=greedy), write)
graph.add_edge(START, "lead")
for topic in SOURCES:
    researcher = Agent(f"{topic} researcher", adapter="act", cue="Source:", sampling=greedy)
    graph.add_step(topic, researcher, research(topic))
    graph.add_edge("lead", topic)
graph.add_step("report", Agent("writer", adapter="reflect", cue="Report:", sampling=greedy), write)
graph.add_edge(list(SOURCES), "report")  # when all of them are done
graph.add_edge("report", END)


def main() -> None:
    parser = argparse.ArgumentParser(description="Researchers who read in parallel, and a writer.")
    parser.add_argument("--server", help="address of a running server; without it one is started")
    parser.add_argument("--question", default="What is Lisbon known for?")
    args = parser.parse_args()
    with server_or_own(args.server) as url:
        start = time.monotonic()
        state = graph.compile(url).invoke({"question": args.question})
        passed = time.monotonic() - start
        with Session(url, state["ids"]) as session:
            print(session.text())
    for step in state["steps"]:
        for turn in step["turns"]:
            print(
                f"{turn['agent']:18} read {turn['prompt_tokens']:4} tokens, {turn['cached_tokens']:4} from the cache; "
                f"{step['seconds']:.1f} s"
            )
    print(
        f"All steps, one after the other: {sum(step['seconds'] for step in state['steps']):.1f} s; as they ran: "
        f"{passed:.1f} s."
    )
    print(
        "The writer found the lead's words and the first researcher's part in the cache. The others' parts stand at "
        "another place now than where they were written, and so they were computed again."
    )


if __name__ == "__main__":
    main()
