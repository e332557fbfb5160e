"""`descant demo`: three agents on one shared KV cache, then the same trajectory without sharing."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from descant.agents.agent import Agent
from descant.agents.shipped import LABEL as TRAINED
from descant.agents.shipped import shipped_adapters
from descant.agents.standin import LABEL, ROLES
from descant.agents.tools.geonames import Geonames
from descant.runtime.checkpoint import MODEL_NAME, demo_checkpoint
from descant.runtime.client import Client
from descant.workflows.actions import FINISH, Actions
from descant.workflows.answering import answer
from descant.workflows.geography.graph import STEPS, geography
from descant.workflows.geography.questions import Atlas, Question
from descant.workflows.graph import AgentGraph
from descant.workflows.plan_act_reflect import plan_act_reflect
from descant.workflows.replay import replay
from descant.workflows.screen import Screen, costs, totals
from descant.workflows.serving import serving, standins
from descant.workflows.state import TurnRecord

CAVEAT = (
    " They make each agent's words its own but have learned no role, and the model is small: the answer may be wrong."
)

ROUNDS = 3  # where stand-ins are told when to look up and when to answer
QUESTION = "What are the capitals of Portugal and Mongolia?"
EXAMPLE = """\
Question: What are the currencies of Denmark and Japan?
Thought: I look up Denmark to read its currency.
Action: Lookup[Denmark]
Observation: Denmark is a country in Europe; its currency is the Krone; its neighbours are Germany.
Thought: The currency of Denmark is the Krone, and I look up Japan.
Action: Lookup[Japan]
Observation: Japan is a country in Asia; its currency is the Yen; it has no neighbours by land.
Thought: The currencies are the Krone and the Yen.
Action: Finish[Krone and Yen]
Observation: Is this answer right? Reflect on it.
Thought: Both currencies were read, and the answer names them.
Action: Reflect[right]"""
# No counted repetition, {8,110}: the server would take seconds to compile it.
ANSWER = r"[A-Za-z0-9][^\[\]\n]*"
PLACE = r"[A-Z][^\[\]\n]*"


@dataclass(frozen=True)
class Cast:
    """Who answers. about: what the adapters are, in a sentence or two. graph: what they can drive."""

    checkpoint: Path
    adapters: Mapping[str, Path]
    about: str
    graph: AgentGraph


def cast(console: Console, model: Path | None, geonames: Geonames, rounds: int | None) -> Cast:
    """The demo's model with its trained adapters where they ship, else any model with stand-ins.

    Args:
        model: folder of a checkpoint with a chat template; the demo's own model if None.
        rounds: thoughts and actions at most; of the graph's own number if None.

    Raises:
        DescantError: something is missing.
    """
    if model is None and (trained := shipped_adapters()) is not None:
        graph = geography({role: role for role in trained}, geonames, steps=rounds or STEPS)
        return Cast(demo_checkpoint(console), trained, f"LoRA adapters {TRAINED}.", graph)
    checkpoint, adapters = standins(console, model)
    return Cast(checkpoint, adapters, f"{LABEL} LoRA adapters.{CAVEAT}", demo_graph(geonames, rounds or ROUNDS))


def run(console: Console, model: Path | None, question: str, rounds: int | None, with_replay: bool) -> None:
    """Run the demo and print it.

    Args:
        model, rounds: as `cast` takes them.
        with_replay: whether to replay the trajectory under `nonshared` for comparison.

    Raises:
        DescantError: something is missing, or the server failed.
    """
    who = cast(console, model, Geonames(), rounds)
    graph, checkpoint, adapters = who.graph, who.checkpoint, who.adapters
    _introduce(console, model, who, question)

    screen = Screen(console, graph.agents)
    with serving(console, checkpoint, adapters, "icarus") as client:
        state: Mapping[str, Any] = {}
        event: Any
        try:
            for mode, event in graph.compile(client).stream({"question": question}, stream_mode=["custom", "values"]):
                if mode == "values":
                    state = event
                else:
                    screen.show(event)
        finally:
            screen.end()
    turns = [turn for step in state["steps"] for turn in step["turns"]]

    replayed: list[TurnRecord] | None = None
    if with_replay:
        with (
            serving(console, checkpoint, adapters, "nonshared") as client,
            console.status("Replaying the same turns, without sharing"),
        ):
            replayed = replay(client, state)
    console.print()
    console.print(costs(turns, replayed, console.width))
    for line in totals(turns, replayed):
        console.print(line, highlight=False)


def run_questions(console: Console, model: Path | None, rounds: int | None) -> None:
    """Answer the twenty held-out questions and print which answers are right.

    Raises:
        DescantError: as `run`.
    """
    geonames = Geonames()
    questions = Atlas(geonames).twenty()
    who = cast(console, model, geonames, rounds)
    _introduce(console, model, who, f"{len(questions)}, of places that no adapter was trained on")
    with serving(console, who.checkpoint, who.adapters, "icarus") as client:
        ask(console, who.graph, client, questions)


def ask(console: Console, graph: AgentGraph, client: Client, questions: Sequence[Question]) -> None:
    """Answer `questions` one after the other, a row of a table each."""
    app = graph.compile(client)
    table = Table("question", "answer", "right answer", "", box=None, pad_edge=False)
    right = 0
    with Live(table, console=console, refresh_per_second=1) as live:
        for question in questions:
            record = asyncio.run(answer(question, lambda _: app, client))
            right += record["exact_match"]
            verdict = "right" if record["exact_match"] else "wrong"
            table.add_row(*map(Text, (question.question, record["answer"] or "none", question.answer, verdict)))
            live.refresh()
    console.print(f"\n{right} of {len(questions)} right.", highlight=False)


def _introduce(console: Console, model: Path | None, who: Cast, question: str) -> None:
    about = Table.grid(padding=(0, 2))
    about.add_column(style="bold")
    about.add_column()
    about.add_row("Model", Text(MODEL_NAME if model is None else str(model)))
    about.add_row("Agents", Text(f"{', '.join(who.adapters)}: {who.about}"))
    about.add_row("Question", Text(f"{question}\n"))
    console.print(about)


def demo_graph(geonames: Geonames, rounds: int) -> AgentGraph:
    """Plan, act and reflect look up places, those that the question names first, and answer in the last round.

    The stand-in adapters have learned no role, so the graph says when to look up and when to answer.
    """

    def unread(state: Mapping[str, Any]) -> list[str]:
        read = {told["argument"] for told in state.get("observations", ())}
        return [place for place in geonames.known_in(state["question"]) if place not in read]

    def allowed(state: Mapping[str, Any]) -> list[str]:
        return (
            [FINISH] if state["rounds"] >= rounds or (state.get("observations") and not unread(state)) else ["Lookup"]
        )

    def places(state: Mapping[str, Any]) -> str:
        return "|".join(map(re.escape, unread(state))) or PLACE

    actions = Actions(geonames.tools(), patterns={"Lookup": places, FINISH: ANSWER}, allowed=allowed)
    plan, act, reflect = (Agent(role, role, sampling={"temperature": 0}) for role in ROLES)
    return plan_act_reflect(plan, act, reflect, actions, steps=rounds, examples=EXAMPLE)
