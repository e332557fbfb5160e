"""Where schedules come from: a CSV of one workflow's turns, or the shape of a known workflow; and when they arrive."""

from __future__ import annotations

import csv
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, islice
from pathlib import Path
from typing import Any

from descant.runtime.errors import DescantError
from descant.workflows.bench.schedule import Turn, Workflow
from descant.workflows.bench.words import counted

COLUMNS = ("agent", "prefill_len", "decode_len")
MOST_TURNS, MOST_TOKENS, MOST_AGENTS = 10_000, 2**31, 10_000  # beyond them there is a slip, and no load
MOST_SCALE, MOST_IN_ALL = 1e6, 10_000_000  # turns of all workflows together

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
        with path.open(newline="", encoding="utf-8-sig") as file:  # spreadsheets begin with a mark of the encoding
            rows = csv.DictReader(file)
            rows.fieldnames = [name.strip() for name in rows.fieldnames or ()]
            if missing := [name for name in COLUMNS if name not in rows.fieldnames]:
                raise DescantError(
                    f"{path}, line 1 has no column {', '.join(missing)}: a schedule begins with {','.join(COLUMNS)}."
                )
            if twice := [name for name in COLUMNS if list(rows.fieldnames).count(name) > 1]:
                raise DescantError(f"{path}, line 1 has the column {', '.join(twice)} twice: leave one out.")
            named = [_turn(path, rows.line_num, row) for row in islice(rows, MOST_TURNS + 1)]
    except OSError as error:
        raise DescantError(f"{path} cannot be read ({error.strerror}).") from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise DescantError(f"{path} is no CSV ({error}).") from error
    if not named:
        raise DescantError(f"{path} has no turns: write one a line below {','.join(COLUMNS)}.")
    if len(named) > MOST_TURNS:
        raise DescantError(f"{path} has more than {MOST_TURNS:,} turns: write one workflow's.")
    numbers = _numbers(path, list(dict.fromkeys(name for name, _, _ in named)))
    turns = tuple(Turn(numbers[name], prefill, decode) for name, prefill, decode in named)
    return Trace(turns, len(numbers))


def _numbers(path: Path, names: Sequence[str]) -> dict[str, int]:
    """Agents' numbers by name: as the names say, if they are numbers themselves."""
    if not all(name.isdecimal() for name in names):
        return {name: number for number, name in enumerate(names)}
    if set(names) != {str(number) for number in range(len(names))}:
        shown = ", ".join(name if len(name) <= 20 else f"{name[:20]}…" for name in names[:5])
        raise DescantError(
            f"{path} has agents {shown}{', …' if len(names) > 5 else ''}: number them from 0 without a gap, or give "
            "them names."
        )
    return {name: int(name) for name in names}


def _turn(path: Path, line: int, row: dict[str | None, Any]) -> tuple[str, int, int]:
    if None in row:
        raise DescantError(f"{path}, line {line} has more fields than line 1 has columns: leave out what is too much.")
    agent = (row["agent"] or "").strip()
    try:
        prefill, decode = int(row["prefill_len"]), int(row["decode_len"])
    except (TypeError, ValueError) as error:
        raise DescantError(f"{path}, line {line} has no two whole numbers of tokens.") from error
    if not 0 <= prefill <= MOST_TOKENS or not 1 <= decode <= MOST_TOKENS or not agent:
        raise DescantError(
            f"{path}, line {line} is no turn: it needs an agent, 0 or more new tokens, and 1 or more to generate."
        )
    return agent, prefill, decode


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


def trajectory(trace: Trace, scale: float) -> int:
    """Tokens of one workflow at its end."""
    return sum(turn.prefill + turn.decode for turn in (scaled(turn, scale) for turn in trace.turns))


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
        DescantError: the trace's own agents are asked for, and it names none, or others than there are; the first turn
            has no prompt; or a size is absurd.
    """
    if not 0 < scale <= MOST_SCALE:
        raise DescantError(f"A scale of {scale:g} leaves no load: give one above 0, and {MOST_SCALE:,.0f} at most.")
    if agents > MOST_AGENTS or workflows * len(trace.turns) > MOST_IN_ALL:
        raise DescantError(
            f"A load of {counted(workflows, 'workflow')}, {counted(len(trace.turns), 'turn')} each, for "
            f"{counted(agents, 'agent')} is too much: give {MOST_AGENTS:,} agents and {MOST_IN_ALL:,} turns in all at "
            "most."
        )
    if choice == AS_WRITTEN and trace.agents != agents:
        named = "names no agents" if trace.agents is None else f"is for {counted(trace.agents, 'agent')}"
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
    load[0].check()
    return load
