"""Schemes side by side on a device that is not there: the comparison of the ICaRus paper's figure 4, predicted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from descant.workflows.bench.predict.machine import Gpu, Roofline, pool_tokens
from descant.workflows.bench.predict.model import Model
from descant.workflows.bench.predict.saturation import Load, Point, Setting, highest, peak, saturate
from descant.workflows.bench.predict.scheme import LINEAR, SCHEMES
from descant.workflows.bench.predict.simulate import Limits


@dataclass(frozen=True)
class Comparison:
    """nonshared against icarus, with one pool for both.

    nonshared, icarus: points by rate, up to beyond each one's saturation.
    icarus_there: icarus at the rate at which nonshared peaks.
    """

    device: str
    model: str
    agents: int
    pool: int
    nonshared: tuple[Point, ...]
    icarus: tuple[Point, ...]
    icarus_there: Point

    @property
    def peak(self) -> Point:
        """nonshared where its throughput peaks."""
        return peak(self.nonshared)

    @property
    def p95_reduction(self) -> float:
        """How many times lower icarus' P95 is, at the rate where nonshared's throughput peaks."""
        return self.peak.p95 / self.icarus_there.p95

    @property
    def throughput_gain(self) -> float:
        """Highest throughput of icarus over that of nonshared, each at its own rate."""
        return highest(self.icarus) / highest(self.nonshared)

    def as_json(self) -> dict[str, Any]:
        return {
            "predicted": True,
            **asdict(self),
            "p95_reduction": self.p95_reduction,
            "throughput_gain": self.throughput_gain,
        }


def compare(gpu: Gpu, model: Model, agents: int, rank: int, load: Load, first_rate: float) -> Comparison:
    """Both schemes on `gpu`. The pool is what nonshared's adapters leave, which are the larger: the same for both.

    Raises:
        DescantError: model, adapters or one trajectory do not fit, or `first_rate` saturates nonshared already.
    """
    limits = Limits(pool_tokens(gpu, model, rank, agents, LINEAR), gpu.chunk)

    def setting(name: str) -> Setting:
        scheme = SCHEMES[name]
        return Setting(load, scheme, Roofline(gpu, model, scheme, rank), limits)

    nonshared = saturate(setting("nonshared"), first_rate)
    icarus = saturate(setting("icarus"), first_rate)
    there = setting("icarus").point(peak(nonshared).rate)
    return Comparison(gpu.name, model.name, agents, limits.pool, tuple(nonshared), tuple(icarus), there)


COLUMNS: dict[str, Callable[[Comparison], str]] = {
    "device": lambda one: one.device,
    "model": lambda one: one.model,
    "agents": lambda one: str(one.agents),
    "KV pool, tokens (predicted)": lambda one: f"{one.pool:,}",
    "rate where nonshared peaks, workflows/s (predicted)": lambda one: f"{one.peak.rate:.3g}",
    "P95 of a workflow there, s (predicted)": lambda one: f"{one.peak.p95:.1f} → {one.icarus_there.p95:.1f}",
    "lower by (predicted)": lambda one: f"{one.p95_reduction:.1f}x",
    "highest throughput, workflows/s (predicted)": lambda one: (
        f"{highest(one.nonshared):.3g} → {highest(one.icarus):.3g}"
    ),
    "higher by (predicted)": lambda one: f"{one.throughput_gain:.1f}x",
    "evicted there, 1,000 tokens (predicted)": lambda one: f"{_thousands(one.peak)} → {_thousands(one.icarus_there)}",
    "found cached there (predicted)": lambda one: f"{one.peak.cached:.0%} → {one.icarus_there.cached:.0%}",
}


def table(comparisons: Sequence[Comparison]) -> str:
    """Markdown, a row a comparison, from nonshared → to icarus; each column of figures says that they are predicted."""
    words = 2  # columns of names, set to the left
    lines = [list(COLUMNS), ["---"] * words + ["---:"] * (len(COLUMNS) - words)]
    lines += [[cell(one) for cell in COLUMNS.values()] for one in comparisons]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _thousands(point: Point) -> str:
    return f"{point.evicted / 1000:,.0f}"
