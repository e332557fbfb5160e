"""Options that the benchmark's commands have in common, and what they stand for."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, TypeVar

import typer

from descant.runtime.errors import DescantError
from descant.workflows.bench.presets import DEFAULTS
from descant.workflows.bench.traces import AS_WRITTEN, CHOICES, MOST_TURNS, SHAPES, Trace, read_csv

T = TypeVar("T")

Shape = Annotated[str, typer.Option(help=f"{' or '.join(SHAPES)}: the turns of a workflow.")]
Csv = Annotated[
    Path | None,
    typer.Option("--csv", help="The turns instead: a CSV with agent,prefill_len,decode_len.", show_default=False),
]
Turns = Annotated[
    int | None,
    typer.Option(min=1, max=MOST_TURNS, help="Turns of a workflow, other than the shape has.", show_default=False),
]
Choice = Annotated[
    str | None,
    typer.Option(
        help="Who speaks: round-robin, random, skewed (Zipf), or as-written in the CSV. Round-robin by default, or "
        "what the CSV says.",
        show_default=False,
    ),
]
Seed = Annotated[int, typer.Option(help="Of arrivals, choices and ids; repeat r adds r.")]


def turns_of(csv: Path | None, shape: str, turns: int | None, choice: str | None) -> tuple[Trace, str]:
    """The turns, and how agents are chosen for them: a CSV says so itself unless it is overruled.

    Raises:
        DescantError: there is no such shape or choice, the CSV is none, or --turns is given with it.
    """
    if shape not in SHAPES:
        raise DescantError(f"There is no shape {shape!r}: name {' or '.join(SHAPES)}.")
    if choice not in (None, AS_WRITTEN, *CHOICES):
        raise DescantError(f"There is no choice {choice!r}: name {', '.join((*CHOICES, AS_WRITTEN))}.")
    if csv is None:
        return SHAPES[shape](turns) if turns else SHAPES[shape](), choice or DEFAULTS["choice"]
    if turns is not None:
        raise DescantError("The CSV has its turns: leave out --turns.")
    return read_csv(csv), choice or AS_WRITTEN


def listed(text: str, option: str, kind: Callable[[str], T]) -> tuple[T, ...]:
    """What stands between the commas of `text`.

    Raises:
        DescantError: a word is empty, no `kind`, there twice, or a number that is not above 0; names the option.
    """
    words = [word.strip() for word in text.split(",")]
    try:
        found = tuple(map(kind, words))
    except ValueError as error:
        raise DescantError(f"{option} {_short(text)} is no list of numbers: write them with commas between.") from error
    if not all(found) or any(isinstance(value, int | float) and not 0 < value < math.inf for value in found):
        raise DescantError(
            f"{option} {_short(text)} has something empty, not above 0, or endless between its commas: leave it out."
        )
    if twice := [word for word, value in zip(words, found, strict=True) if found.count(value) > 1]:
        raise DescantError(f"{option} {_short(text)} has {_short(twice[0])} twice: name each once.")
    return found


def _short(text: str) -> str:
    return text if len(text) <= 80 else f"{text[:80]}…"


def finite(value: float | None) -> float | None:
    """An option's callback: a bound alone lets nan and inf pass."""
    if value is not None and not math.isfinite(value):
        raise typer.BadParameter(f"{value} is no finite number.")
    return value
