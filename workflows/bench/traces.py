"""Where schedules come from: a CSV of one workflow's turns, or the shape of a known workflow; and when they arrive."""

from __future__ import annotations

import csv
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path

from descant.runtime.errors import DescantError
from descant.workflows.bench.schedule import Turn, Workflow

COLUMNS = ("agent", "prefill_len", "decode_len")

# Token counts as in the trace that PReCache's efficiency tables replay (tables 5, 9 and 10 of that paper): a question
# of 512, retrieved text of 4,096; a thought decodes 32, an action's kind 8, its argument 8.
OPENING, OBSERVATION = 512, 4096
STEP = 32 + 8 + 8
REACT_TURNS = 7  # the step limit on HotpotQA (Yao et al. 2023)
# Reflexion (Shinn et al. 2023): a trial of four steps, the evaluator's verdict, and between trials a reflection.
TRIAL_STEPS, TRIALS = 4, 2
ASKED, VERDICT, REFLECTION = 32, 8, 32


@dataclass(frozen=True)
class Trace:
    """One workflow's turns before anything is chosen for a load.

    agents: how many its turns name; None where no agent is named and all turns say 0.
    """

    turns: tuple[Turn, ...]
    agents: int | None = None


def react(turns: int = REACT_TURNS) -> Trace:
    """ReAct: a question, then each turn a thought and an action; before all but the first stands an observation."""
    return Trace((Turn(0, OPENING, STEP), *[Turn(0, OBSERVATION, STEP)] * (turns - 1)))


def reflexion(turns: int = TRIALS * (TRIAL_STEPS + 2) - 1) -> Trace:
    """Reflexion: trials of four ReAct steps and a verdict, with a reflection between two, in one transcript.

    The first step of a later trial has no observation before it, only the cue.
    """
    first = [Turn(0, OPENING, STEP), *[Turn(0, OBSERVATION, STEP)] * (TRIAL_STEPS - 1)]
    judged = [Turn(0, ASKED, VERDICT), Turn(0, VERDICT, REFLECTION)]
    later = [Turn(0, VERDICT, STEP), *[Turn(0, OBSERVATION, STEP)] * (TRIAL_STEPS - 1)]
    every = [*first, *judged]
    while len(every) < turns:
        every += [*later, *judged]
    return Trace(tuple(every[:turns]))


SHAPES: dict[str, Callable[..., Trace]] = {"react": react, "reflexion": reflexion}


def read_csv(path: Path) -> Trace:
    """The turns in a CSV with the columns agent, prefill_len and decode_len; agents are numbers from 0, or names.

    Names are numbered in the order in which they first speak.

    Raises:
        DescantError: the file cannot be read, or a row is none; names the file and the line.
    """
    try:
        with path.open(newline="", encoding="utf-8") as file:
            rows = csv.DictReader(file)
            if missing := [name for name in COLUMNS if name not in (rows.fieldnames or ())]:
                raise DescantError(
                    f"{path}, line 1 has no column {', '.join(missing)}: a schedule begins with {','.join(COLUMNS)}."
                )
            named = [(str(row["agent"] or "").strip(), *_counts(path, rows.line_num, row)) for row in rows]
    except OSError as error:
        raise DescantError(f"{path} cannot be read ({error.strerror}).") from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise DescantError(f"{path} is no CSV ({error}).") from error
    if not named:
        raise DescantError(f"{path} has no turns: write one a line below {','.join(COLUMNS)}.")
    names = list(dict.fromkeys(name for name, _, _ in named))
    numbers = {name: int(name) if _numbered(names) else number for number, name in enumerate(names)}
    turns = tuple(Turn(numbers[name], prefill, decode) for name, prefill, decode in named)
    return Trace(turns, 1 + max(numbers.values()))


def _numbered(names: Sequence[str]) -> bool:
    return all(name.isdecimal() for name in names)


def _counts(path: Path, line: int, row: dict[str, str]) -> tuple[int, int]:
    try:
        prefill, decode = int(row["prefill_len"]), int(row["decode_len"])
    except (TypeError, ValueError) as error:
        raise DescantError(f"{path}, line {line} has no two whole numbers of tokens.") from error
    if prefill < 0 or decode < 1 or not (row["agent"] or "").strip():
        raise DescantError(
            f"{path}, line {line} is no turn: it needs an agent, 0 or more new tokens, and 1 or more to generate."
        )
    return prefill, decode


def round_robin(agents: int, turns: int, draw: random.Random) -> list[int]:
    """0, 1, … in turn."""
    return [turn % agents for turn in range(turns)]


def uniform(agents: int, turns: int, draw: random.Random) -> list[int]:
    """Each turn any agent, all equally likely."""
    return [draw.randrange(agents) for _ in range(turns)]


def skewed(agents: int, turns: int, draw: random.Random) -> list[int]:
    """Zipf's law with exponent 1: agent k speaks with a probability proportional to 1 / (k + 1)."""
    return draw.choices(range(agents), weights=[1 / (k + 1) for k in range(agents)], k=turns)


CHOICES: dict[str, Callable[[int, int, random.Random], list[int]]] = {
    "round-robin": round_robin,
    "random": uniform,
    "skewed": skewed,
}
AS_WRITTEN = "as-written"  # the agents that the trace names


def scaled(turn: Turn, scale: float) -> Turn:
    """Both counts times `scale`, rounded, at least 1; no new tokens stay none."""
    prefill = max(1, round(turn.prefill * scale)) if turn.prefill else 0
    return replace(turn, prefill=prefill, decode=max(1, round(turn.decode * scale)))


def arrivals(count: int, rate: float, seed: int) -> list[float]:
    """A Poisson process: seconds from the first arrival, which is 0. The same gaps at every rate, only stretched."""
    draw = random.Random(f"arrivals {seed}")
    gaps = [0.0, *(draw.expovariate(1.0) for _ in range(count - 1))]
    return [gap / rate for gap in accumulate(gaps)]


def schedule(
    trace: Trace, *, workflows: int, agents: int, choice: str, scale: float, rate: float, seed: int
) -> list[Workflow]:
    """The load: `workflows` times the trace's turns. What is drawn depends on seed and agents, never on the rate.

    Args:
        agents: how many there are to choose from.
        choice: a key of CHOICES, or AS_WRITTEN.
        scale: factor of all token counts.
        rate: workflows a second.

    Raises:
        DescantError: the trace's own agents are asked for, and it names none, or others than there are; or the scale is
            not above 0.
    """
    if not 0 < scale < math.inf:
        raise DescantError(f"A scale of {scale} leaves no load: give one above 0.")
    if choice == AS_WRITTEN and trace.agents != agents:
        named = "names no agents" if trace.agents is None else f"is for {trace.agents} agents"
        raise DescantError(
            f"The schedule {named}, not {agents}: say how to choose them, with --choice {', '.join(CHOICES)}."
        )
    load = []
    for number, arrival in enumerate(arrivals(workflows, rate, seed)):
        turns = [scaled(turn, scale) for turn in trace.turns]
        if choice != AS_WRITTEN:
            draw = random.Random(f"agents {seed} {number}")
            chosen = CHOICES[choice](agents, len(turns), draw)
            turns = [replace(turn, agent=agent) for turn, agent in zip(turns, chosen, strict=True)]
        load.append(Workflow(number, arrival, tuple(turns)))
    return load
