"""Accuracy on held-out questions about places, four ways side by side, as Markdown.

Run as `python bench/accuracy.py --lora FOLDER`, with `--icarus FOLDER` for other adapters than those that ship; each
folder holds the adapters plan, act and reflect. The arms, each on a server of its own, one after the other:

- base: the base model for all roles, with two finished transcripts in front;
- lora: conventional adapters, each with its own cache (`nonshared`);
- icarus: ICaRus adapters on the base model's cache (`icarus`);
- fullshared: the conventional adapters on whatever cache is there (`fullshared`). What they read depends on who came
  first, and so on `--concurrency`.

Each finished question is a line of OUTPUT/ARM/results.jsonl, so the same command goes on where it was cut off.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from accuracy_report import by_family, comparisons, table
from rich.console import Console

from descant.agents.shipped import FOLDER
from descant.agents.standin import ROLES
from descant.agents.tools.geonames import Geonames
from descant.runtime.checkpoint import demo_checkpoint
from descant.runtime.errors import DescantError
from descant.workflows.answering import answer_all
from descant.workflows.evaluate import KV_TOKENS
from descant.workflows.geography.graph import STEPS, geography
from descant.workflows.geography.questions import Atlas, Question
from descant.workflows.geography.trajectories import examples
from descant.workflows.results import Results
from descant.workflows.serving import serving

EACH = 40  # questions a family; border has 24, so 224 in all
ARMS = ("base", "lora", "icarus", "fullshared")


@dataclass(frozen=True)
class Arm:
    """How the questions are answered. folder: of the adapters; None is the base model, with examples."""

    name: str
    scheme: str
    folder: Path | None

    @property
    def adapters(self) -> dict[str, Path]:
        """By role.

        Raises:
            DescantError: one is missing.
        """
        found = {role: self.folder / role for role in ROLES} if self.folder is not None else {}
        for path in found.values():
            if not (path / "adapter_model.safetensors").is_file():
                raise DescantError(f"The arm {self.name} needs an adapter in {path}: train it first, or leave it out.")
        return found


def chosen(names: Sequence[str], icarus: Path, lora: Path | None) -> list[Arm]:
    """The arms of these names.

    Raises:
        DescantError: one needs conventional adapters, and there are none.
    """
    if lora is None and {"lora", "fullshared"} & set(names):
        raise DescantError("Two arms need conventional adapters: give --lora FOLDER, or --arms base icarus.")
    every = {
        "base": Arm("base", "nonshared", None),
        "lora": Arm("lora", "nonshared", lora),
        "icarus": Arm("icarus", "icarus", icarus),
        "fullshared": Arm("fullshared", "fullshared", lora),
    }
    return [every[name] for name in names]


def measure(
    arm: Arm,
    questions: Sequence[Question],
    limit: int | None,
    atlas: Atlas,
    model: Path,
    output: Path,
    concurrency: int,
    steps: int,
    console: Console,
) -> list[dict[str, Any]]:
    """The records of an arm on the first `limit` questions; what is in its folder already is not asked again."""
    adapters = arm.adapters
    shown = "" if adapters else examples(atlas)
    results = Results(output / arm.name)
    results.begin(
        {
            "questions": [[question.id, question.answer] for question in questions],
            "arm": arm.name,
            "scheme": arm.scheme,
            "model": _digest(model / "config.json"),
            "adapters": {role: _digest(path / "adapter_model.safetensors") for role, path in adapters.items()},
            "steps": steps,
            "concurrency": concurrency,
            "examples": shown,
        }
    )
    asked = questions[:limit]
    if all(question.id in results.by_id for question in asked):
        return [results.by_id[question.id] for question in asked]
    roles: Mapping[str, str | None] = {role: role if adapters else None for role in ROLES}
    with serving(console, model, adapters, arm.scheme, kv_tokens=KV_TOKENS) as client:
        graph = geography(roles, atlas.geonames, examples=shown, steps=steps).compile(client)
        return answer_all(asked, lambda _: graph, client, results, concurrency, console, arm.name)


def report(arms: Mapping[str, Sequence[Mapping[str, Any]]], questions: Sequence[Question]) -> str:
    families = {question.id: question.family for question in questions}
    parts = [table(arms), by_family(arms, families.__getitem__)]
    if len(arms) > 1:
        parts.insert(1, comparisons(arms))
    return "\n\n".join([f"{len(questions)} questions of the test split; in brackets 95 % intervals.", *parts])


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--icarus", type=Path, default=FOLDER, metavar="FOLDER", help="default: those that ship")
    parser.add_argument("--lora", type=Path, metavar="FOLDER", help="conventional adapters")
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=list(ARMS))
    parser.add_argument("--model", type=Path, metavar="FOLDER", help="default: the demo's")
    parser.add_argument("--output", type=Path, default=Path("accuracy"), metavar="FOLDER")
    parser.add_argument("--limit", type=int, metavar="N", help="only the first N questions, families in turn")
    parser.add_argument("--concurrency", type=int, default=4, metavar="K", help="questions at once (%(default)s)")
    parser.add_argument("--steps", type=int, default=STEPS, metavar="N", help="rounds at most (%(default)s)")
    options = parser.parse_args(words)
    for name in ("limit", "concurrency", "steps"):
        if (given := getattr(options, name)) is not None and given < 1:
            parser.error(f"--{name}: give 1 or more")
    console = Console(stderr=True)
    atlas = Atlas(Geonames())
    questions = atlas.questions("test", EACH)
    arms = chosen(options.arms, options.icarus, options.lora)
    for arm in arms:
        _ = arm.adapters  # all of them are there before the first hour is spent
    model = options.model or demo_checkpoint(console)
    how = (options.limit, atlas, model, options.output, options.concurrency, options.steps, console)
    records = {arm.name: measure(arm, questions, *how) for arm in arms}
    text = report(records, questions[: options.limit])
    (options.output / "report.md").write_text(text + "\n", encoding="utf-8")
    print(text)


def _digest(file: Path) -> str:
    try:
        return hashlib.sha256(file.read_bytes()).hexdigest()[:16]
    except OSError as error:
        raise DescantError(f"{file} cannot be read ({error.strerror}).") from error


if __name__ == "__main__":
    try:
        main()
    except DescantError as error:
        sys.exit(str(error))
