"""Predicted curves as PNGs, in the form of the ICaRus paper's figure 4; needs matplotlib, the extra `bench`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from descant.runtime.errors import DescantError
from descant.workflows.bench import plots as measured
from descant.workflows.bench.predict.study import Comparison

# As in the measured plots, but dashed and hollow: no point of these was measured.
LOOKS = {
    scheme: {**measured.LOOKS[scheme], "linestyle": "--", "markerfacecolor": "none"}
    for scheme in ("nonshared", "icarus")
}
ROWS = (("p95", "P95 of a workflow, s (predicted)"), ("throughput", "workflows/s (predicted)"))


def check_matplotlib() -> None:
    """To be asked before minutes of simulation, not after.

    Raises:
        DescantError: matplotlib is not installed.
    """
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError as error:
        raise DescantError("The plots need matplotlib: pip install 'descant[bench]', or leave out --plots.") from error


def plot(comparisons: Sequence[Comparison], folder: Path) -> list[Path]:
    """P95 and throughput over the rate, one file for each device and model, a column a number of agents."""
    from matplotlib.figure import Figure

    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for device, model in dict.fromkeys((one.device, one.model) for one in comparisons):
        own = [one for one in comparisons if (one.device, one.model) == (device, model)]
        figure = Figure(figsize=(1 + 3 * len(own), 6), layout="constrained")
        figure.suptitle(f"Predicted, not measured: {model} on {device}")
        grid: Any = figure.subplots(2, len(own), squeeze=False, sharey="row")
        for column, one in enumerate(own):
            for row, (name, label) in enumerate(ROWS):
                axes = grid[row][column]
                for scheme, look in LOOKS.items():
                    points = getattr(one, scheme)
                    rates = [point.rate for point in points]
                    axes.plot(rates, [getattr(point, name) for point in points], label=scheme, **look)
                measured.over_rate(axes, one.agents, label if column == 0 else "")
            grid[0][column].set_yscale("log")
        grid[0][0].legend()
        file = folder / f"predicted-{device}-{model}.png"
        figure.savefig(file, dpi=120)
        written.append(file)
    return written
