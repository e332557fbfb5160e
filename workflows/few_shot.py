"""Finished transcripts that show a model without trained adapters how the ready-made graphs' lines go."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

# A thought, the action that follows from it, and what the tool said.
Round = tuple[str, str, str]


@dataclass(frozen=True)
class Example:
    """rounds: those before the answer. last: the thought before it. answer: what Finish says. checked: why it is right.
    hasty: a wrong answer that a first trial might give. learned: what its failure teaches."""

    question: str
    rounds: tuple[Round, ...]
    last: str
    answer: str
    checked: str
    hasty: str
    learned: str


PAGES = (
    Example(
        question="In which country is the lake that the river Brenna flows into?",
        rounds=(
            (
                "I need the lake that the Brenna flows into, so I search the Brenna.",
                "Search[Brenna]",
                "The Brenna is a river, 41 km long. It rises in the Hask hills and flows into Lake Orrin.",
            ),
            (
                "The Brenna flows into Lake Orrin, so I search Lake Orrin.",
                "Search[Lake Orrin]",
                "Lake Orrin is a mountain lake in the east of Slovenia. It covers 12 square km.",
            ),
        ),
        last="Lake Orrin is in Slovenia, so the answer is Slovenia.",
        answer="Slovenia",
        checked="The question asks for a country, and Slovenia was read on the lake's page.",
        hasty="Lake Orrin",
        learned="The question asks for the country, not for the lake, so I answer with the lake's country.",
    ),
    Example(
        question="Were the painters Ida Holm and Carl Reuter born in the same year?",
        rounds=(
            (
                "I need the year in which each was born, so I search Ida Holm.",
                "Search[Ida Holm]",
                "Ida Holm (1871 - 1940) was a Danish painter of harbours.",
            ),
            (
                "Ida Holm was born in 1871, so I search Carl Reuter.",
                "Search[Carl Reuter]",
                "Carl Reuter (1866 - 1931) was an Austrian painter and teacher.",
            ),
        ),
        last="1871 and 1866 are different years, so the answer is no.",
        answer="no",
        checked="Both years were read, and they differ.",
        hasty="1871",
        learned="The question asks whether the years are the same, so I answer yes or no.",
    ),
)
PLACES = (
    Example(
        question="What is the currency of the country whose capital is Copenhagen?",
        rounds=(
            (
                "I need the country of Copenhagen, so I look it up.",
                "Lookup[Copenhagen]",
                "Copenhagen is a city in Denmark; its population is 1,153,615.",
            ),
            (
                "Copenhagen is in Denmark, so I look up Denmark.",
                "Lookup[Denmark]",
                "Denmark is a country in Europe; its capital is Copenhagen; its currency is the Krone.",
            ),
        ),
        last="The currency of Denmark is the Krone.",
        answer="Krone",
        checked="The currency was read, and it is what the question asks for.",
        hasty="Denmark",
        learned="The question asks for the currency, so I answer with the currency.",
    ),
)


def few_shot(workflow: str, kinds: Collection[str]) -> str:
    """Transcripts for a ready-made workflow whose agents may take actions of these kinds; empty if none fits."""
    shown = PAGES if "Search" in kinds else PLACES if "Lookup" in kinds else ()
    return "\n\n".join("\n".join(_lines(example, workflow)) for example in shown)


def _lines(example: Example, workflow: str) -> list[str]:
    lines = [f"Question: {example.question}"]
    for thought, action, observation in example.rounds:
        lines += [f"Thought: {thought}", f"Action: {action}", f"Observation: {observation}"]
    if workflow == "reflexion":
        lines += [
            f"Thought: The answer is {example.hasty}.",
            f"Action: Finish[{example.hasty}]",
            "Evaluation: wrong",
            f"Reflection: {example.learned}",
            "Trial 2.",
        ]
    lines += [f"Thought: {example.last}", f"Action: Finish[{example.answer}]"]
    if workflow == "reflexion":
        lines.append("Evaluation: right")
    if workflow == "plan-act-reflect":
        lines += [
            "Observation: Is this answer right? Reflect on it.",
            f"Thought: {example.checked}",
            "Action: Reflect[right]",
        ]
    return lines
