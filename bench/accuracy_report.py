"""What bench/accuracy.py makes of its records: measures with 95 % intervals, arms compared in pairs, as Markdown."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from descant.workflows.actions import THOUGHT_TOKENS
from descant.workflows.hotpotqa import exact_match
from descant.workflows.report import Interval, bootstrap, wilson

Record = Mapping[str, Any]
VERDICTS = ("right", "wrong")


def correct(record: Record) -> bool:
    """Whether the last Finish gave the answer, normalised."""
    return bool(record["exact_match"])


def well_formed(record: Record) -> bool:
    """Whether every line was complete, every tool could be called, and the run ended in an answer that reflect took.

    A line is cut where a thought or an argument reaches its limit of tokens.
    """
    closed = all(turn["text"].endswith("]") for turn in record["turns"] if turn["agent"] == "act")
    thought = all(turn["output_tokens"] < THOUGHT_TOKENS for turn in record["turns"] if turn["agent"] != "act")
    called = all(told["ok"] for told in record["observations"])
    return record["error"] is None and record["ended"] == "answered" and closed and thought and called


def verdicts(record: Record) -> list[bool]:
    """Of each verdict of reflect whether it is true of the answer before it."""
    judged = []
    answer = ""
    for turn in record["turns"]:
        if turn["agent"] == "act":
            answer = turn["text"].removesuffix("]").strip()
        elif turn["agent"] == "reflect" and turn["text"] in VERDICTS:
            judged.append((turn["text"] == "right") == exact_match(answer, record["key"]))
    return judged


def generated(record: Record) -> int:
    """Tokens that the agents generated."""
    return sum(turn["output_tokens"] for turn in record["turns"])


def mcnemar(only_first: int, only_second: int) -> float:
    """The exact two-sided p of McNemar's test: how likely so uneven a split of the questions that just one arm answers
    is, if both arms are equally good (binomial with one half)."""
    n = only_first + only_second
    tail = sum(math.comb(n, k) for k in range(min(only_first, only_second) + 1))
    return min(1.0, 2 * tail / 2**n)


def paired(first: Sequence[Record], second: Sequence[Record]) -> tuple[float, Interval, float]:
    """By how much more of the questions the first arm answers, the paired bootstrap's interval, and McNemar's p.

    Raises:
        ValueError: the arms did not answer the same questions.
    """
    other = {record["id"]: correct(record) for record in second}
    if [record["id"] for record in first] != [record["id"] for record in second]:
        raise ValueError("the arms answered different questions, so they cannot be compared in pairs")
    differences = [float(correct(record) - other[record["id"]]) for record in first]
    p = mcnemar(differences.count(1.0), differences.count(-1.0))
    return statistics.fmean(differences), bootstrap(differences), p


def table(arms: Mapping[str, Sequence[Record]]) -> str:
    """A row an arm: shares with Wilson's intervals, means with the bootstrap's."""
    columns = ("answer correct", "format success", "verdict accuracy", "rounds", "tokens generated")
    rows = []
    for name, records in arms.items():
        judged = [verdict for record in records for verdict in verdicts(record)]
        rows.append(
            [
                name,
                _share([correct(record) for record in records]),
                _share([well_formed(record) for record in records]),
                _share(judged),
                _mean([float(record["rounds"]) for record in records], ".1f"),
                _mean([float(generated(record)) for record in records], ".0f"),
            ]
        )
    return _markdown(("", *columns), rows)


def comparisons(arms: Mapping[str, Sequence[Record]]) -> str:
    """Each arm against each later one, over the same questions."""
    names = list(arms)
    rows = []
    for number, first in enumerate(names):
        for second in names[number + 1 :]:
            difference, (low, high), p = paired(arms[first], arms[second])
            rows.append([f"{first} - {second}", _points(difference, low, high), f"{p:.2g}"])
    return _markdown(("answer correct", "difference in points (paired bootstrap)", "McNemar's exact p"), rows)


def by_family(arms: Mapping[str, Sequence[Record]], family: Callable[[str], str]) -> str:
    """How many answers of each family are correct; `family` gives that of a question's id."""
    ids = [record["id"] for records in arms.values() for record in records]
    families = dict.fromkeys(map(family, ids))
    rows = []
    for name in families:
        cells = []
        for records in arms.values():
            right = [correct(record) for record in records if family(record["id"]) == name]
            cells.append(f"{sum(right)} of {len(right)}")
        rows.append([name, *cells])
    return _markdown(("family", *arms), rows)


def _share(values: Sequence[bool]) -> str:
    if not values:
        return "none"
    low, high = wilson(sum(values), len(values))
    return f"{100 * statistics.fmean(values):.1f} % ({100 * low:.1f} to {100 * high:.1f})"


def _mean(values: Sequence[float], form: str) -> str:
    low, high = bootstrap(values)
    return f"{statistics.fmean(values):{form}} ({low:{form}} to {high:{form}})"


def _points(difference: float, low: float, high: float) -> str:
    return f"{100 * difference:+.1f} ({100 * low:+.1f} to {100 * high:+.1f})"


def _markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
