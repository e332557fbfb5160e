"""What the rows of a cell come to. Pure functions; docs/benchmark.md defines each measure in a sentence."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from descant.workflows.bench.row import Row
from descant.workflows.bench.watch import Watched

PERCENTILES = (50, 90, 95, 99)


def percentile(values: Sequence[float], p: float) -> float:
    """The p-th percentile, interpolated between neighbours: of n sorted values, the one at position p (n - 1) / 100."""
    ordered = sorted(values)
    place = p / 100 * (len(ordered) - 1)
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (place - below) * (ordered[above] - ordered[below])


def workflow_latencies(rows: Sequence[Row]) -> list[float]:
    """Seconds from each workflow's arrival to its last token, by its number."""
    arrival: dict[int, float] = {}
    end: dict[int, float] = {}
    for row in rows:
        arrival[row.workflow] = min(row.due, arrival.get(row.workflow, math.inf))
        end[row.workflow] = max(row.end, end.get(row.workflow, 0.0))
    return [end[number] - arrival[number] for number in sorted(arrival)]


def measures(rows: Sequence[Row], watched: Watched) -> dict[str, float | None]:
    """All measures of one cell: seconds, tokens, bytes, shares from 0 to 1, and per second over the span from the first
    arrival to the last token."""
    span = max(row.end for row in rows) - min(row.due for row in rows)
    latencies = workflow_latencies(rows)
    prompt = sum(row.prompt for row in rows)
    output = sum(row.output for row in rows)
    cached, cross = sum(row.cached for row in rows), sum(row.cross_agent for row in rows)
    result: dict[str, float | None] = {}
    for name, values in (
        ("ttft", [row.first - row.due for row in rows]),
        ("turn", [row.end - row.due for row in rows]),
        ("workflow", latencies),
    ):
        result |= {f"{name}_p{p}": percentile(values, p) for p in PERCENTILES}
    samples = watched.samples
    waits = [row.queued for row in rows if row.queued is not None]
    queued = statistics.fmean(waits) if len(waits) == len(rows) else None
    first = statistics.fmean(row.first - row.due for row in rows)
    return result | {
        "queue_mean": queued,
        "prefill_mean": None if queued is None else first - queued,
        "decode_mean": statistics.fmean(row.end - row.first for row in rows),
        "workflows_per_s": len(latencies) / span,
        "output_per_s": output / span,
        "prompt_per_s": prompt / span,
        "span": span,
        "prompt_tokens": prompt,
        "prefilled_tokens": prompt - cached,
        "output_tokens": output,
        "cached_share": cached / prompt,
        "cross_agent_share": cross / prompt,
        "late_max": max(row.sent - row.due for row in rows),
        "kv_held_peak": max(sample.held for sample in samples) if samples else None,
        "kv_held_mean": statistics.fmean(sample.held for sample in samples) if samples else None,
        "kv_running_peak": max(sample.running for sample in samples) if samples else None,
        "evicted_tokens": watched.evicted,
        "retracted_requests": watched.retracted,
        "rss_peak": watched.rss,
    }


@dataclass(frozen=True)
class Spread:
    """A median over repeats, and how far they lie apart."""

    median: float
    low: float
    high: float
    repeats: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        return cls(statistics.median(values), min(values), max(values), len(values))


def spreads(cells: Sequence[Mapping[str, Any]]) -> dict[str, Spread]:
    """Each measure over the repeats of one cell; a measure that some repeat lacks is left out."""
    return {
        name: Spread.of([cell[name] for cell in cells])
        for name in cells[0]
        if all(cell.get(name) is not None for cell in cells)
    }


def by_turn(rows: Sequence[Row]) -> list[tuple[float, float]]:
    """For each turn's number the mean prompt length and the median TTFT in seconds: what a longer trajectory costs."""
    turns: dict[int, list[Row]] = defaultdict(list)
    for row in rows:
        turns[row.turn].append(row)
    return [
        (
            statistics.fmean(row.prompt for row in turns[number]),
            statistics.median(row.first - row.due for row in turns[number]),
        )
        for number in sorted(turns)
    ]


def held_by_trajectory(rows: Sequence[Row], watched: Watched) -> list[tuple[int, int]]:
    """At each sample: the tokens of all trajectories so far, and the KV slots that hold something.

    A scheme that keeps each token once holds as many slots as there are tokens, until the pool is full.
    """
    points = []
    for sample in watched.samples:
        longest: dict[int, int] = {}
        for row in rows:
            if row.first <= sample.at:
                read = row.prompt + (row.output if row.end <= sample.at else 0)
                longest[row.workflow] = max(read, longest.get(row.workflow, 0))
        points.append((sum(longest.values()), sample.held))
    return points
