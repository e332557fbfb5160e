"""A benchmark's file as PNGs; needs matplotlib, the extra `bench`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from descant.runtime.errors import DescantError
from descant.workflows.bench.cells import Bench
from descant.workflows.bench.measures import by_turn, held_by_trajectory
from descant.workflows.bench.report import Point, curve, points
from descant.workflows.bench.words import counted

# By scheme: colours that also differ in grey, and as many markers.
LOOKS = {
    "nonshared": {"color": "#b04a2f", "marker": "s"},
    "icarus": {"color": "#1f5fa8", "marker": "o"},
    "fullshared": {"color": "#7a7a7a", "marker": "^"},
}


def plot(bench: Bench, folder: Path) -> list[Path]:
    """Write load.png, trajectory.png and agents.png into `folder`.

    Raises:
        DescantError: matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise DescantError("The plots need matplotlib: pip install 'descant[bench]', or give --no-plots.") from error
    every = points(bench)
    agents = sorted({point.agents for point in every})
    schemes = list(dict.fromkeys(point.scheme for point in every))
    if not every:
        return []

    def load(figure: Any) -> None:
        """P95 latency and throughput over the rate, as in ICaRus's figure 4."""
        grid = figure.subplots(2, len(agents), squeeze=False, sharey="row")
        for column, number in enumerate(agents):
            for row, (name, label) in enumerate(
                (("workflow_p95", "P95 of a workflow, s"), ("workflows_per_s", "throughput, workflows/s"))
            ):
                axes = grid[row][column]
                for scheme in schemes:
                    _line(axes, curve(every, scheme, number), scheme, lambda point: point.rate, name)
                over_rate(axes, number, label if column == 0 else "")
            grid[0][column].set_yscale("log")
        grid[0][0].legend()

    def trajectory(figure: Any) -> None:
        """What a longer trajectory costs where nothing queues: time to first token, and KV slots."""
        grid = figure.subplots(2, len(agents), squeeze=False, sharey="row")
        for column, number in enumerate(agents):
            for scheme in schemes:
                if (point := _lowest(every, schemes, scheme, number)) is None:
                    continue
                cell = point.cells[0]
                look = _look(scheme)
                grid[0][column].plot(*zip(*by_turn(cell.rows), strict=True), label=scheme, **look)
                if held := held_by_trajectory(cell.rows, cell.watched):
                    grid[1][column].plot(*zip(*held, strict=True), label=scheme, **look)
                grid[0][column].set_title(f"{counted(number, 'agent')}, {point.rate:.3g} workflows/s")
            grid[0][column].set_xlabel("prompt of the turn, tokens")
            grid[1][column].set_xlabel("all trajectories so far, tokens")
        grid[0][0].set_ylabel("TTFT, median, s")
        grid[1][0].set_ylabel("KV held, tokens")
        grid[0][0].legend()

    def by_agents(figure: Any) -> None:
        """Time to first token and peak KV over the number of agents, at the lowest rate."""
        grid = figure.subplots(1, 2)
        for axes, name, label in zip(
            grid, ("ttft_p50", "kv_held_peak"), ("TTFT p50, s", "KV held at peak, tokens"), strict=True
        ):
            for scheme in schemes:
                lowest = [point for number in agents if (point := _lowest(every, schemes, scheme, number))]
                _line(axes, [point for point in lowest if name in point.measures], scheme, lambda p: p.agents, name)
            axes.set_xlabel("agents")
            axes.set_xticks(agents)
            axes.set_ylabel(label)
            axes.set_ylim(bottom=0)
        grid[0].legend()

    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for name, draw, size in (
        ("load", load, (4 * len(agents) + 1, 7)),
        ("trajectory", trajectory, (4 * len(agents) + 1, 7)),
        ("agents", by_agents, (9, 4)),
    ):
        figure = Figure(figsize=size, layout="constrained")
        draw(figure)
        written.append(folder / f"{name}.png")
        figure.savefig(written[-1], dpi=120)
    return written


def over_rate(axes: Any, agents: int, label: str) -> None:
    """A panel over the offered rate; `label` stands at its other axis."""
    axes.set_xscale("log", base=2)
    axes.set_xlabel("offered, workflows/s")
    axes.set_title(counted(agents, "agent"))
    axes.set_ylabel(label)


def _line(axes: Any, line: Sequence[Point], scheme: str, x: Callable[[Point], float], name: str) -> None:
    """Medians over `x`, with bars from the lowest to the highest repeat."""
    spread = [point.measures[name] for point in line]
    below, above = [s.median - s.low for s in spread], [s.high - s.median for s in spread]
    medians = [s.median for s in spread]
    axes.errorbar([x(point) for point in line], medians, yerr=[below, above], label=scheme, capsize=3, **_look(scheme))


def _look(scheme: str) -> dict[str, str]:
    return LOOKS.get(scheme, {})


def _lowest(every: Sequence[Point], schemes: Sequence[str], scheme: str, agents: int) -> Point | None:
    """The point at the lowest rate that all schemes have for this number of agents."""
    common = set.intersection(*({point.rate for point in curve(every, each, agents)} for each in schemes))
    return next((point for point in curve(every, scheme, agents) if common and point.rate == min(common)), None)
