"""Learning curves side by side, as Markdown: `python bench/curves.py icarus=RUN/log.jsonl lora=OTHER/log.jsonl`.

A log has one JSON object a line, {"step": n, "loss": x, "eval_loss": y, …}; a step may have several lines. Rows are the
steps at which some run was evaluated. The loss is the last one that was logged by then.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from descant.runtime.errors import DescantError

Points = dict[int, dict[str, float]]


def read(log: Path) -> Points:
    """The losses by step.

    Raises:
        DescantError: it cannot be read, or a line is none of a log's.
    """
    points: Points = {}
    try:
        lines = log.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise DescantError(f"The log {log} cannot be read ({error.strerror}).") from error
    except UnicodeDecodeError as error:
        raise DescantError(f"{log} is no log of a training run (it is not UTF-8).") from error
    for number, line in enumerate(lines, start=1):
        try:
            entry: dict[str, Any] = json.loads(line)
            losses = {name: float(entry[name]) for name in ("loss", "eval_loss") if entry.get(name) is not None}
            points.setdefault(int(entry["step"]), {}).update(losses)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise DescantError(
                f"{log}, line {number} is no line of a log ({type(error).__name__}: {error})."
            ) from error
    return points


def curves(runs: Mapping[str, Points]) -> str:
    """A row for each step at which some run was evaluated, two columns a run."""
    steps = sorted({step for points in runs.values() for step, losses in points.items() if "eval_loss" in losses})
    head = ["step", *(f"{name}: {what}" for name in runs for what in ("loss", "eval loss"))]
    rows = [[str(step), *(cell for points in runs.values() for cell in _cells(points, step))] for step in steps]
    return "\n".join(f"| {' | '.join(line)} |" for line in [head, ["---"] * len(head), *rows])


def _cells(points: Points, step: int) -> tuple[str, str]:
    trained = [losses["loss"] for at, losses in sorted(points.items()) if at <= step and "loss" in losses]
    held = points.get(step, {}).get("eval_loss")
    return (f"{trained[-1]:.3f}" if trained else "", f"{held:.3f}" if held is not None else "")


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", metavar="NAME=LOG")
    pairs = [word.partition("=") for word in parser.parse_args(words).runs]
    if wrong := [name for name, equals, _ in pairs if not equals]:
        parser.error(f"{wrong[0]} names no log: write NAME=LOG")
    if len({name for name, _, _ in pairs}) < len(pairs):
        parser.error("two runs have one name: write NAME=LOG, each with its own name")
    print(curves({name: read(Path(log)) for name, _, log in pairs}))


if __name__ == "__main__":
    try:
        main()
    except DescantError as error:
        sys.exit(str(error))
