"""An evaluation summed up: measures with their 95 % confidence intervals, and what the runs cost."""

from __future__ import annotations

import math
import random
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

from descant.workflows.summary import Totals

Z = 1.96
RESAMPLES = 2000
Interval = tuple[float, float]


def summarise(records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The report on these records, as JSON: shares between 0 and 1, times in seconds."""
    matches = [bool(record["exact_match"]) for record in records]
    scores = [float(record["f1"]) for record in records]
    return {
        "questions": len(records),
        "exact_match": statistics.fmean(matches),
        "exact_match_interval": wilson(sum(matches), len(matches)),
        "f1": statistics.fmean(scores),
        "f1_interval": bootstrap(scores),
        "answered": statistics.fmean(record["answer"] is not None for record in records),
        "ended": dict(Counter(record["ended"] for record in records).most_common()),
        "errors": sum(record["error"] is not None for record in records),
        "rounds_mean": statistics.fmean(record["rounds"] for record in records),
        "seconds_mean": statistics.fmean(record["seconds"] for record in records),
        **Totals.of(turn for record in records for turn in record["turns"]).as_json(),
    }


def wilson(successes: int, trials: int) -> Interval:
    """Wilson's score interval for a share, which stays honest where nothing, or everything, succeeded."""
    share, square = successes / trials, Z * Z
    centre = (share + square / (2 * trials)) / (1 + square / trials)
    half = Z / (1 + square / trials) * math.sqrt(share * (1 - share) / trials + square / (4 * trials * trials))
    return max(0.0, centre - half), min(1.0, centre + half)


def bootstrap(values: Sequence[float]) -> Interval:
    """The percentile bootstrap's interval for the mean, with a fixed seed."""
    draw = random.Random(0)
    means = sorted(statistics.fmean(draw.choices(values, k=len(values))) for _ in range(RESAMPLES))
    return means[round(0.025 * (RESAMPLES - 1))], means[round(0.975 * (RESAMPLES - 1))]


def render(report: Mapping[str, Any]) -> Table:
    """The report as a table of two columns."""

    def within(name: str, method: str) -> str:
        low, high = report[f"{name}_interval"]
        return f"{report[name]:.3f}  (95 % interval {low:.3f} to {high:.3f}, {method})"

    number = report["questions"]
    rows = {
        "Questions": f"{number}, {report['workflow']}, {report['concurrency']} at once",
        "Exact match": within("exact_match", "Wilson"),
        "F1": within("f1", f"bootstrap of {RESAMPLES:,}"),
        "Answered": f"{report['answered']:.1%}",
        "Ended": "; ".join(f"{reason}: {count}" for reason, count in report["ended"].items()),
        "Rounds": f"{report['rounds_mean']:.1f} a question, in {report['seconds_mean']:.1f} s",
        "Generated": f"{report['generated_tokens']:,} tokens, {report['generated_tokens'] / number:.0f} a question",
        "Prefilled": f"{report['prefilled_tokens']:,} tokens, {report['prefilled_tokens'] / number:.0f} a question",
        "Time to first token": f"{report['ttft_p50']:.2f} s (p50), {report['ttft_p90']:.2f} s (p90)",
        "Cached": f"{report['cached_share']:.1%} of {report['prompt_tokens']:,} prompt tokens",
        "From another agent": f"{report['cross_agent_share']:.1%} of all prompt tokens",
        "Results": report["results"],
    }
    if report["workflow"] == "reflexion":
        rows["Evaluator"] = "the key, by exact match, after each trial"
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold")
    table.add_column()
    for name, value in rows.items():
        table.add_row(Text(name), Text(value))
    return table
