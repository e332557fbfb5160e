"""Where a scheme saturates: the rate is doubled until throughput no longer grows, then filled in around its peak."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from descant.runtime.errors import DescantError
from descant.workflows.bench.peak import GROWTH
from descant.workflows.bench.peak import peak as peak_rate
from descant.workflows.bench.predict.outcome import outcome
from descant.workflows.bench.predict.scheme import Scheme
from descant.workflows.bench.predict.simulate import Limits, simulate
from descant.workflows.bench.predict.step import Machine
from descant.workflows.bench.schedule import Workflow

DOUBLINGS = 24
FILLED = 4  # parts, by equal factors, of each doubling next to the peak

Load = Callable[[float], Sequence[Workflow]]  # the schedule at a rate, in workflows/s


@dataclass(frozen=True)
class Point:
    """What is predicted at a rate. All of it is simulated, none measured.

    rate, throughput: workflows/s offered and served. p95: seconds of a workflow. ttft: seconds of a turn, the median.
    cached, cross_agent: of all tokens of prompts, the part that was found cached, and that another agent had written.
    evicted, prefilled: tokens. retracted: requests. peak: tokens of KV in use, cached ones included.
    """

    rate: float
    throughput: float
    p95: float
    ttft: float
    cached: float
    cross_agent: float
    evicted: int
    prefilled: int
    retracted: int
    peak: int


@dataclass(frozen=True)
class Setting:
    """What is asked of a scheme on a machine: `point(rate)` says how it goes."""

    load: Load
    scheme: Scheme
    machine: Machine
    limits: Limits

    def point(self, rate: float) -> Point:
        """The load at `rate`, simulated."""
        run = simulate(self.load(rate), self.scheme, self.machine, self.limits)
        found = outcome(run.turns)
        return Point(
            rate=rate,
            throughput=found.throughput,
            p95=found.p95,
            ttft=found.ttft,
            cached=found.cached / found.prompt,
            cross_agent=found.foreign / found.prompt,
            evicted=run.evicted,
            prefilled=run.prefilled,
            retracted=run.retracted,
            peak=run.peak,
        )


def saturate(setting: Setting, first: float) -> list[Point]:
    """Points from the rate `first` up to beyond saturation, by rate.

    Raises:
        DescantError: it is saturated at `first` already, or not after DOUBLINGS doublings.
    """
    points = [setting.point(first)]
    for _ in range(DOUBLINGS):
        points.append(setting.point(2 * points[-1].rate))
        if points[-1].throughput < GROWTH * points[-2].throughput:
            break
    else:
        raise DescantError(f"{setting.scheme.name} is not saturated at {points[-1].rate:g} workflows/s.")
    if len(points) == 2:
        raise DescantError(
            f"{setting.scheme.name} is saturated at {first:g} workflows/s already: begin at a lower rate, with "
            "--first-rate."
        )
    top = max(range(len(points)), key=lambda place: points[place].throughput)
    knee = points.index(peak(points))
    for place in sorted({knee - 1, knee, top - 1, top} & set(range(len(points) - 1))):
        points += [setting.point(points[place].rate * 2 ** (part / FILLED)) for part in range(1, FILLED)]
    return sorted(points, key=lambda point: point.rate)


def highest(points: Sequence[Point]) -> float:
    """The highest throughput."""
    return max(point.throughput for point in points)


def peak(points: Sequence[Point]) -> Point:
    """Where throughput peaks."""
    at = peak_rate({point.rate: point.throughput for point in points})
    return next(point for point in points if point.rate == at)
