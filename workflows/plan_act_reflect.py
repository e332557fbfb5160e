"""A ReAct loop of three agents, plan, act and reflect, that take turns on one trajectory (ReAct: arXiv 2210.03629)."""

from __future__ import annotations

import re
from typing import Protocol

from descant.agents.lookup import Lookup
from descant.runtime.client import Client
from descant.workflows.trajectory import Trajectory

QUESTION = "What is the capital of the country that borders Portugal?"
INSTRUCTIONS = """\
You answer questions about the world with facts from a tool. Work in lines:
Plan: say what to look up next, and why.
Action: Lookup[place] to read facts about a place, or Finish[answer] to answer.
Observation: what the tool said.
Reflect: say what the observation tells about the question.

Here is an example.
Question: What is the currency of the country that borders Denmark?
Plan: The question is about the country that borders Denmark, so look up Denmark first.
Action: Lookup[Denmark]
Observation: Denmark is a country in Europe; its currency is the Krone; its neighbours are Germany.
Reflect: Denmark has the neighbour Germany, so the question is about the currency of Germany.
Plan: The currency of Germany is still missing, so look up Germany.
Action: Lookup[Germany]
Observation: Germany is a country in Europe; its currency is the Euro; its neighbours are Denmark, France.
Reflect: Germany has the currency Euro, so the answer is Euro.
Plan: The question is answered.
Action: Finish[Euro]"""
SENTENCE = r" [A-Z][^\n\[\].;]{8,110}\."
ANSWER = r"Finish\[[A-Za-z0-9][^\[\]\n]{0,38}\]"
ANY_PLACE = r"[A-Z][^\[\]\n]{1,38}"
SENTENCE_TOKENS = 40
ACTION_TOKENS = 64  # more than the regex can need: an action is never cut


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
    for rounds_left in reversed(range((turns + 1) // 3)):
        speak("plan", "Plan:", SENTENCE, SENTENCE_TOKENS)
        unread = [place for place in dict.fromkeys(named) if place not in read]
        if rounds_left == 0 or (read and not unread):
            break
        places = "|".join(map(re.escape, unread)) or ANY_PLACE
        action = speak("act", "\nAction:", rf" Lookup\[({places})\]", ACTION_TOKENS)
        fact = lookup(action.strip().removeprefix("Lookup[").removesuffix("]"))
        read.add(fact.entity)
        named += fact.related
        trajectory.append(f"\nObservation: {fact.text}")
        audience.tool_says(fact.text)
        speak("reflect", "\nReflect:", SENTENCE, SENTENCE_TOKENS)
        trajectory.append("\n")
    speak("act", "\nAction:", f" {ANSWER}", ACTION_TOKENS)
    return trajectory


def opening(client: Client, question: str) -> list[int]:
    """The ids that every agent reads first: instructions and question, in the model's chat template."""
    return client.tokenize_chat(
        [{"role": "system", "content": INSTRUCTIONS}, {"role": "user", "content": f"Question: {question}"}]
    )
