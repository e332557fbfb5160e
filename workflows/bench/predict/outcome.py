"""What a load's turns come to: latencies, throughput, what was found cached. Served or simulated, alike."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from descant.workflows.bench.measures import percentile, workflow_latencies
from descant.workflows.bench.row import Row
from descant.workflows.bench.schedule import Turn, Workflow


@dataclass(frozen=True)
class Outcome:
    """A load in figures.

    ttft: median seconds from a turn's being due to its first token.
    latency: median seconds from a workflow's arrival to its last token; p95: that of the slowest twentieth.
    throughput: workflows a second, from the first arrival to the last token.
    prompt, cached, foreign: tokens of prompts, those found cached, and those of them that another agent wrote.
    """

    ttft: float
    latency: float
    p95: float
    throughput: float
    prompt: int
    cached: int
    foreign: int


def outcome(turns: Sequence[Row]) -> Outcome:
    seconds = workflow_latencies(turns)
    return Outcome(
        ttft=median(turn.first - turn.due for turn in turns),
        latency=median(seconds),
        p95=percentile(seconds, 95),
        throughput=len(seconds) / (max(turn.end for turn in turns) - min(turn.due for turn in turns)),
        prompt=sum(turn.prompt for turn in turns),
        cached=sum(turn.cached for turn in turns),
        foreign=sum(turn.cross_agent for turn in turns),
    )


def schedule_of(turns: Sequence[Row]) -> list[Workflow]:
    """The schedule that was served, from its turns."""
    by_workflow: dict[int, list[Row]] = {}
    for turn in turns:
        by_workflow.setdefault(turn.workflow, []).append(turn)
    found = []
    for number, served in sorted(by_workflow.items()):
        served.sort(key=lambda turn: turn.turn)
        before = 0
        schedule = []
        for turn in served:
            schedule.append(Turn(turn.agent, turn.prompt - before, turn.output))
            before = turn.prompt + turn.output
        found.append(Workflow(number, served[0].due, tuple(schedule)))
    return found
