"""What `descant bench agents` measured, as cells to fit constants on or to predict."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from descant.runtime.errors import DescantError
from descant.workflows.bench import cells as benchmark
from descant.workflows.bench.predict.calibrate import Cell, Error, Fitted, errors, fit
from descant.workflows.bench.predict.outcome import outcome
from descant.workflows.bench.predict.simulate import Limits
from descant.workflows.bench.report import table


def measured(file: Path, chunk: int) -> list[Cell]:
    """The cells in a benchmark's file; those that failed are left out.

    Args:
        chunk: tokens of a prefill step on that server at most (--chunked-prefill-size).

    Raises:
        DescantError: the file cannot be read, or is no benchmark's, or holds no measurement.
    """
    bench = benchmark.measured(file)
    limits = Limits(bench.recipe["pool_tokens"], chunk, bench.recipe["max_running"])
    return [
        Cell(cell.key.scheme, cell.key.agents, cell.key.rate, limits, tuple(cell.rows))
        for cell in bench.cells.values()
        if cell.error is None
    ]


@dataclass(frozen=True)
class Validated:
    """A cell against its prediction. fitted: whether the constants were fitted on it; it was held out otherwise."""

    cell: Cell
    fitted: bool
    error: Error


@dataclass(frozen=True)
class Calibration:
    """A scheme's constants, and how they predict each of its cells."""

    scheme: str
    machine: Fitted
    cells: tuple[Validated, ...]


def calibrate(cells: Sequence[Cell]) -> list[Calibration]:
    """For each scheme: fit on the lowest rate of each number of agents and every second above it, predict all.

    Repeats at a rate are fitted on, or held out, together.

    Raises:
        DescantError: a scheme has no second rate, so that nothing would be held out.
    """
    found = []
    for scheme in dict.fromkeys(cell.scheme for cell in cells):
        own = [cell for cell in cells if cell.scheme == scheme]
        taken = set()
        for agents in {cell.agents for cell in own}:
            taken |= {(agents, rate) for rate in sorted({cell.rate for cell in own if cell.agents == agents})[::2]}
        if len(taken) == len({(cell.agents, cell.rate) for cell in own}):
            raise DescantError(
                f"{scheme} was measured at one rate: measure two at least, one to fit on and one to predict."
            )
        machine = fit([cell for cell in own if (cell.agents, cell.rate) in taken])
        judged = tuple(Validated(cell, (cell.agents, cell.rate) in taken, errors(cell, machine)) for cell in own)
        found.append(Calibration(scheme, machine, judged))
    return found


FAR = 0.25  # of the measured throughput


def misfit(calibrations: Sequence[Calibration]) -> str:
    """A sentence on cells that the constants miss although they were fitted on them; "" if there are none."""
    far = [
        one.cell.name
        for calibration in calibrations
        for one in calibration.cells
        if one.fitted and abs(one.error.throughput) > FAR
    ]
    if not far:
        return ""
    return (
        f"The fit is poor: throughput is off by more than {FAR:.0%} in {'; '.join(dict.fromkeys(far))}, on which it "
        "was fitted, so take no prediction from it; --chunk may be another one there, or the rate lie far past "
        "saturation."
    )


HEAD = (
    "scheme",
    "agents",
    "rate, workflows/s",
    "constants",
    "TTFT, median error (predicted)",
    "workflow, median error (predicted)",
    "P95, s (measured)",
    "off by (predicted)",
    "workflows/s (measured)",
    "off by (predicted)",
    "found cached (measured)",
    "off by (predicted)",
)


def render(calibrations: Sequence[Calibration]) -> str:
    """Markdown: what was fitted, then a row a cell: how far the prediction is off from what was measured."""
    rows = []
    for calibration in calibrations:
        for one in calibration.cells:
            served = outcome(one.cell.turns)
            rows.append(
                [
                    calibration.scheme,
                    str(one.cell.agents),
                    f"{one.cell.rate:.3g}",
                    "fitted on it" if one.fitted else "held out",
                    f"{one.error.ttft:.0%}",
                    f"{one.error.latency:.0%}",
                    f"{served.p95:.2f}",
                    f"{one.error.p95:+.0%}",
                    f"{served.throughput:.3g}",
                    f"{one.error.throughput:+.0%}",
                    f"{served.cached / served.prompt:.0%}",
                    f"{100 * one.error.cached:+.0f} points",
                ]
            )
    fitted = "\n".join(
        f"- {calibration.scheme}, fitted: {_constants(calibration.machine)}" for calibration in calibrations
    )
    parts = [fitted, table(HEAD, rows), misfit(calibrations)]
    return "\n\n".join(part for part in parts if part)


def _constants(machine: Fitted) -> str:
    return (
        f"{1e3 * machine.turn:.3g} ms a turn; {1e3 * machine.prefill_step:.3g} ms a prefill step, "
        f"{1e6 * machine.prefill_row:.3g} us a row, {1e9 * machine.prefill_pair:.3g} ns a pair; "
        f"{1e3 * machine.decode_step:.3g} ms a decode step, {1e6 * machine.decode_row:.3g} us a row, "
        f"{1e9 * machine.decode_kv:.3g} ns a token read"
    )
