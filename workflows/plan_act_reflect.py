"""A ReAct loop of three agents, plan, act and reflect, that take turns on one trajectory (ReAct: arXiv 2210.03629)."""

from __future__ import annotations

import re
from typing import Protocol

from descant.agents.lookup import Lookup
from descant.runtime.client import Client
from descant.workflows.trajectory import Trajectory

QUESTION = "What are the capitals of Portugal and Mongolia?"
INSTRUCTIONS = """\
You answer questions about the world with facts from a tool. Work in lines:
Plan: the place to look up next.
Action: Lookup[place] to read facts about a place, or Finish[answer] to answer.
Observation: what the tool said.
Reflect: what that tells about the question.

Here is an example.
Question: What are the currencies of Denmark and Japan?
Plan: Look up Denmark to read its currency.
Action: Lookup[Denmark]
Observation: Denmark is a country in Europe; its currency is the Krone; its neighbours are Germany.
Reflect: The currency of Denmark is the Krone.
Plan: Look up Japan to read its currency.
Action: Lookup[Japan]
Observation: Japan is a country in Asia; its currency is the Yen; it has no neighbours by land.
Reflect: The currency of Japan is the Yen.
Action: Finish[Krone and Yen]"""
# No counted repetition, {8,110}: the server would take seconds to compile it. The length is max_new_tokens' to bound.
SENTENCE = r" [A-Z][^\n\[\].;,]+\."
ANSWER = r" Finish\[[A-Za-z0-9][^\[\]\n]*\]"
PLACE = r"[A-Z][^\[\]\n]*"
SENTENCE_TOKENS = 40
ACTION_TOKENS = 32


class Audience(Protocol):
    """Whoever watches a run."""

    def turn_starts(self, agent: str, cue: str) -> None: ...
    def agent_says(self, text: str) -> None: ...
    def tool_says(self, observation: str) -> None: ...


def plan_act_reflect(client: Client, question: str, turns: int, lookup: Lookup, audience: Audience) -> Trajectory:
    """Answer `question` in at most `turns` turns of the agents; the last one is `act`'s answer.

    Before that, `act` looks up one place a round: one that the question or the tool has named and nobody has read.

    Raises:
        RequestError: the server refused a turn.
    """
    trajectory = Trajectory(client, opening(client, question))

    def speak(agent: str, cue: str, regex: str, tokens: int) -> str:
        trajectory.append(cue)
        audience.turn_starts(agent, cue.strip())
        params = {"temperature": 0, "regex": regex, "max_new_tokens": tokens}
        return trajectory.speak(agent, params, audience.agent_says)

    named = lookup.known_in(question)
    read: set[str] = set()
    for _ in range((turns - 1) // 3):
        unread = [place for place in dict.fromkeys(named) if place not in read]
        if read and not unread:
            break
        speak("plan", "Plan:", SENTENCE, SENTENCE_TOKENS)
        places = "|".join(map(re.escape, unread)) or PLACE
        action = speak("act", "\nAction:", rf" Lookup\[({places})\]", ACTION_TOKENS)
        fact = lookup(action.strip().removeprefix("Lookup[").removesuffix("]"))
        read.add(fact.entity)
        named += fact.related
        trajectory.append(f"\nObservation: {fact.text}")
        audience.tool_says(fact.text)
        speak("reflect", "\nReflect:", SENTENCE, SENTENCE_TOKENS)
        trajectory.append("\n")
    speak("act", "Action:", ANSWER, ACTION_TOKENS)
    return trajectory


def opening(client: Client, question: str) -> list[int]:
    """The ids that every agent reads first: instructions and question, in the model's chat template."""
    return client.tokenize_chat(
        [{"role": "system", "content": INSTRUCTIONS}, {"role": "user", "content": f"Question: {question}"}]
    )
