"""What the role adapters learn from: plan/act/reflect runs on questions, with the tools' real answers.

A run is cut into spans exactly where the served graph tokenizes by itself: a cue, what an agent says, what a program
writes in one go. A span with a role is that agent's to learn. What goes wrong on purpose (a hasty answer, a misspelt
place) has no role, so nobody learns it; what the others make of it has.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from descant.agents.tool import Tool, call
from descant.workflows.actions import FINISH
from descant.workflows.geography.graph import opening, tools
from descant.workflows.geography.questions import HELD_OUT, LABELS, PLURALS, SEED, Atlas, Names, Question
from descant.workflows.hotpotqa import exact_match
from descant.workflows.plan_act_reflect import AGAIN, ASK

WRONG_SHARE = 0.35  # of runs answer wrongly first
MISSPELT_SHARE = 0.08  # of runs misspell a place first
WEIGHTS: Mapping[str, float] = {"border": 0.5}  # beside 1 for the other families: it has few questions

Span = dict[str, str | None]


@dataclass(frozen=True)
class Move:
    """A thought, and the action that follows from it."""

    thought: str
    kind: str
    argument: str


@dataclass(frozen=True)
class Slip:
    """A wrong answer that a hasty run might give.

    after: how many of the right moves were made before it. thought: what leads to it. seen: what is wrong, as reflect
    says it.
    """

    after: int
    thought: str
    answer: str
    seen: str


class Transcript:
    """A run, written span by span; in each, `role` is who learns it."""

    def __init__(self, tools: Sequence[Tool]) -> None:
        self.spans: list[Span] = []
        self._tools = {tool.name: tool for tool in tools}

    def act(self, move: Move, plan: str | None = "plan", act: str | None = "act") -> str:
        """A round up to what is observed of it; returns the tool's answer, "" for Finish."""
        self._think(move.thought, plan)
        self._add(None, "Action:")
        self._add(plan, f" {move.kind}")
        self._add(None, "[")
        self._add(act, f"{move.argument}]")
        self._add(None, "\n")
        if move.kind == FINISH:
            self._add(None, ASK)
            return ""
        observation = call(self._tools[move.kind], move.argument)
        self._add(None, f"Observation: {observation.text}\n")
        return observation.text

    def judge(self, thought: str, right: bool) -> None:
        self._think(thought, "reflect")
        self._add(None, "Action: Reflect[")
        self._add("reflect", "right" if right else "wrong")
        self._add(None, "]\n" if right else f"]\n{AGAIN}")

    def text(self) -> str:
        return "".join(str(span["text"]) for span in self.spans)

    def _think(self, thought: str, role: str | None) -> None:
        self._add(None, "Thought:")
        self._add(role, f" {thought}")
        # The line's end is the agent's to say. The graph writes it again with what follows, in one go, which gives the
        # same ids: tokenizers part a line break from a word behind it.
        self._add(role, "\n")

    def _add(self, role: str | None, text: str) -> None:
        self.spans.append({"role": role, "text": text})


def moves(question: Question, random: Random) -> list[Move]:
    """The shortest way to the answer, with thoughts that carry what was read."""
    one = random.choice
    first, *rest = question.places
    label = LABELS.get(question.attribute, question.attribute)
    if question.family in ("city", "border"):
        via, value = question.via, question.values[0]
        if question.family == "city":
            begin = one([f"I need the country of {first}, so I look up {first}.", f"First I look up the city {first}."])
            go_on = one([f"{first} lies in {via}, so I look up {via}.", f"{first} is in {via}. Now I look up {via}."])
        else:
            begin = one([f"I need the neighbour of {first}, so I look up {first}.", f"First I look up {first}."])
            go_on = one(
                [f"{first} borders {via}, so I look up {via}.", f"Its neighbour is {via}. Now I look up {via}."]
            )
        end = one([f"The {label} of {via} is {value}.", f"{via} has the {label} {value}, which is the answer."])
        thoughts = [begin, go_on, end]
    elif question.family == "pair":
        a, b = question.values
        thoughts = [
            one([f"I need two {PLURALS[question.attribute]}, so I look up {first}.", f"First I look up {first}."]),
            one([f"The {label} of {first} is {a}, so I look up {rest[0]} next.", f"{first} has {a}. Now {rest[0]}."]),
            one([f"{first} has {a} and {rest[0]} has {b}.", f"The {PLURALS[question.attribute]} are {a} and {b}."]),
        ]
    else:
        a, b = question.values
        begin = one([f"I need two populations, so I look up {first}.", f"First I look up {first}."])
        go_on = one([f"{first} has {a} people, so I look up {rest[0]} next.", f"{first} has {a}. Now {rest[0]}."])
        both = f"{first} has {a} and {rest[0]} has {b}"
        if question.family == "sum":
            total = one([f"Together they have {question.answer} people.", f"The sum is {question.answer}."])
            thoughts = [begin, go_on, f"{both}, so I add them.", total]
        else:
            thoughts = [begin, go_on, f"{both}, so {question.answer} has more."]
    return [Move(thought, *action) for thought, action in zip(thoughts, question.actions, strict=True)]


def approved(question: Question) -> str:
    """What reflect thinks of the right answer: what was read again, and that it is the answer."""
    first, *rest = question.places
    if question.via is not None:
        return f"The {LABELS[question.attribute]} of {question.via} is {question.values[0]}, as answered."
    a, b = question.values
    if question.family == "pair":
        return f"{first} has {a} and {rest[0]} has {b}, as answered."
    if question.family == "sum":
        return f"The sum that was computed is {question.answer}, as answered."
    return f"{first} has {a} and {rest[0]} has {b}: {question.answer} has more, as answered."


def slips(question: Question, atlas: Atlas, random: Random) -> list[Slip]:
    """Plausible wrong answers: of the wrong hop, of the other place, of another attribute, of half the work."""
    first, *rest = question.places
    if question.via is not None:
        via, label, value = question.via, LABELS[question.attribute], question.values[0]
        country = atlas.country(via)
        others = [atlas.value(country, attribute) for attribute in LABELS if attribute != question.attribute]
        other = random.choice([name for name in others if name != value])
        return [
            Slip(1, f"The answer is {via}.", via, f"The question asks for the {label}, and {via} was not looked up."),
            Slip(
                2, f"I read {via}, and the answer is {other}.", other, f"The {label} of {via} is {value}, not {other}."
            ),
            Slip(2, f"The answer is {via}.", via, f"The {label} of {via} is {value}, not {via}."),
        ]
    a, b = question.values
    both = f"{first} has {a} and {rest[0]} has {b}"
    if question.family == "pair":
        return [
            Slip(1, f"The answer is {a}.", a, f"Only {first} was looked up, and {rest[0]} is missing."),
            Slip(2, f"The answer is {b}.", b, f"{both}, and the answer is only {b}."),
            Slip(2, f"The answer is {b} and {a}.", f"{b} and {a}", f"{both}, not {b} and {a}."),
        ]
    missing = f"Only {first} was looked up, and {rest[0]} is missing."
    if question.family == "sum":
        one = random.choice([a, b])
        return [
            Slip(1, f"The answer is {a}.", a, missing),
            Slip(2, f"The answer is {one}.", one, f"{both}, and they were not added."),
            Slip(3, f"The answer is {one}.", one, f"The sum that was computed is {question.answer}, not {one}."),
        ]
    loser = next(place for place in question.places if place != question.answer)
    return [
        Slip(1, f"{first} has {a}, so it is {first}.", first, missing),
        Slip(2, f"{both}, so {loser} has more.", loser, f"{both}: {question.answer} has more, not {loser}."),
        Slip(2, f"The answer is {loser}.", loser, f"{both}: {question.answer} has more, not {loser}."),
    ]


def misspelt(name: str, random: Random) -> str:
    """`name` with two letters swapped, or one left out."""
    place = random.randrange(1, len(name) - 1)
    if random.random() < 0.5:
        return name[:place] + name[place + 1 :]
    return name[: place - 1] + name[place] + name[place - 1] + name[place + 1 :]


class Generator:
    """Writes trajectories of a split; none names a place that is held out from it."""

    def __init__(self, atlas: Atlas) -> None:
        self.atlas = atlas
        self._tools = tools(atlas.geonames)

    def samples(self, split: str, count: int, seed: int = SEED) -> Iterator[dict[str, Any]]:
        """`count` samples, {"opening": messages, "spans": [{"role", "text"}, …]}: the same for the same seed."""
        random = Random(f"{seed} {split} trajectories")
        held = [name for name in HELD_OUT if name != split]
        names = Names(self.atlas.geonames, held)
        families = self.atlas.families(split)
        weights = [WEIGHTS.get(family, 1) for family in families]
        while count:
            question = self.atlas.draw(split, random.choices(families, weights)[0], random)
            transcript = self.run(question, random)
            if transcript is not None and names.within(f"{question.question}\n{transcript.text()}") is None:
                yield {"opening": opening(question.question), "spans": transcript.spans}
                count -= 1

    def run(self, question: Question, random: Random) -> Transcript | None:
        """A run on `question`, right at once or not; None if a misspelt place was found nevertheless."""
        how = random.random()
        if how < WRONG_SHARE:
            # Luxembourg is the capital of Luxembourg.
            plausible = slips(question, self.atlas, random)
            wrong = [slip for slip in plausible if not exact_match(slip.answer, question.answer)]
            return self.wrong_first(question, random.choice(wrong), random)
        if how < WRONG_SHARE + MISSPELT_SHARE:
            return self.misspelt_first(question, random)
        return self.right(question, random)

    def right(self, question: Question, random: Random) -> Transcript:
        """The shortest run."""
        transcript = Transcript(self._tools)
        for move in moves(question, random):
            transcript.act(move)
        transcript.judge(approved(question), True)
        return transcript

    def wrong_first(self, question: Question, slip: Slip, random: Random) -> Transcript:
        """A run that slips, is told so, and goes on from there to the right answer."""
        transcript = Transcript(self._tools)
        made = moves(question, random)
        for move in made[: slip.after]:
            transcript.act(move)
        transcript.act(Move(slip.thought, FINISH, slip.answer), plan=None, act=None)
        transcript.judge(slip.seen, False)
        for number, move in enumerate(made[slip.after :]):
            transcript.act(Move(f"That was wrong. {move.thought}", *_action(move)) if number == 0 else move)
        transcript.judge(approved(question), True)
        return transcript

    def misspelt_first(self, question: Question, random: Random) -> Transcript | None:
        """A run that misspells a place, finds nothing, and looks it up again; None if something was found."""
        transcript = Transcript(self._tools)
        where = random.randrange(len(question.reads))
        for number, move in enumerate(moves(question, random)):
            if number == where:
                wrong = misspelt(move.argument, random)
                told = transcript.act(Move(move.thought, move.kind, wrong), act=None)
                if not told.startswith("Nothing is known"):
                    return None
                move = Move(f"{wrong} was not found, so I look up {move.argument}.", *_action(move))
            transcript.act(move)
        transcript.judge(approved(question), True)
        return transcript


def examples(atlas: Atlas) -> str:
    """Two finished transcripts of the train split, for a model without trained adapters."""
    shown = [atlas.make("city", "currency", ["Porto"]), atlas.make("sum", "population", ["Kenya", "Norway"])]
    return "\n\n".join(
        f"Question: {question.question}\n{Generator(atlas).right(question, Random(SEED)).text().strip()}"
        for question in shown
    )


def _action(move: Move) -> tuple[str, str]:
    return move.kind, move.argument
