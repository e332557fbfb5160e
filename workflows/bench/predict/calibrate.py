"""A machine whose constants are fitted to what a load on it took, and how far its predictions are from other loads.

For a CPU a data sheet says little: what a step takes there is calls of operators and kernels far from the peak. So a
step's time is taken as linear in its counts, with constants of their own for prefill and decode, and for each scheme,
as the schemes run different kernels.

What is fitted: the seven constants of `Fitted`, on the time to the first token and the time from there to the end of
every turn in the cells given. A turn's time is not one step's: it waits for others' and shares its own. The simulation
says which steps lay between: a turn's time is the constants times the counts of those steps, summed, and linear in the
constants as long as the steps stay the same. So: simulate, solve for the constants, simulate with them, till they stay.
Where a simulation has the order of two turns wrong, some turns are far off and the others exact; hence least absolute
relative errors and not least squares, by which those few would bend all constants (iteratively reweighted least
squares: each equation by the inverse of its error).

What a load cannot tell apart: where no two turns ever share a prefill step, only the sum of `turn` and `prefill_step`
shows, and where none ever decodes beside another, only that of `decode_step` and a row's `decode_row`. Give several
rates, of which some are near saturation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass
from statistics import median

import numpy as np

from descant.workflows.bench.measures import workflow_latencies
from descant.workflows.bench.predict.outcome import outcome, schedule_of
from descant.workflows.bench.predict.scheme import scheme_named
from descant.workflows.bench.predict.simulate import Limits, Run, simulate
from descant.workflows.bench.predict.step import Step
from descant.workflows.bench.row import Row
from descant.workflows.bench.words import counted

ITERATIONS = 30
SETTLED = 1e-9  # relative change of the constants
REWEIGHTED = 30  # times that equations are weighted anew
EXACT = 1e-3  # relative errors below this one weigh the same


@dataclass(frozen=True)
class Fitted:
    """A machine, model and scheme by measured constants, in seconds: a `Machine`.

    turn: a turn outside of steps: the request's way in and out.
    prefill_step, prefill_row, prefill_pair: a prefill step, each row in it, each (query, key) pair.
    decode_step, decode_row, decode_kv: a decode step, each row in it, each token whose K and V it reads.
    """

    turn: float = 0.0
    prefill_step: float = 0.0
    prefill_row: float = 0.0
    prefill_pair: float = 0.0
    decode_step: float = 0.0
    decode_row: float = 0.0
    decode_kv: float = 0.0

    def seconds(self, step: Step) -> float:
        if step.prefill:
            return self.prefill_step + self.prefill_row * step.rows + self.prefill_pair * step.pairs
        return self.decode_step + self.decode_row * step.rows + self.decode_kv * step.kv


@dataclass(frozen=True)
class Cell:
    """A load that was served: under which scheme, with how many agents, at which rate, with which limits, and how."""

    scheme: str
    agents: int
    rate: float
    limits: Limits
    turns: tuple[Row, ...]

    @property
    def name(self) -> str:
        return f"{self.scheme}, {counted(self.agents, 'agent')}, {self.rate:g}/s"

    def simulated(self, machine: Fitted) -> Run:
        return simulate(schedule_of(self.turns), scheme_named(self.scheme), machine, self.limits)


@dataclass(frozen=True)
class Error:
    """How far prediction is from measurement in a cell, as parts of what was measured.

    ttft, latency: median over turns, and over workflows, of the absolute error.
    p95, throughput: signed: positive where the prediction is higher.
    cached: predicted minus measured tokens found cached, over those of all prompts.
    """

    ttft: float
    latency: float
    p95: float
    throughput: float
    cached: float


def fit(cells: Sequence[Cell]) -> Fitted:
    """The constants that fit `cells` best, all of one scheme on one machine.

    Cells are taken in one by one, the lowest rate first: where turns hardly meet, what steps they share is certain.
    """
    ordered = sorted(cells, key=lambda cell: cell.rate)
    machine = _first_guess(ordered[0].turns)
    for taken in range(1, len(ordered) + 1):
        machine = _improved(machine, ordered[:taken])
    return machine


def _improved(machine: Fitted, cells: Sequence[Cell]) -> Fitted:
    """The best of what comes of solving again and again, `machine` first."""
    measured = np.concatenate([_measured(cell.turns) for cell in cells])
    taken = measured > 0
    tried = np.array(astuple(machine))
    best, best_error = tried, np.inf
    for _ in range(ITERATIONS):
        counts = np.concatenate([_counts(cell.simulated(Fitted(*tried)), float(tried[0])) for cell in cells])
        relative = counts[taken] / measured[taken, None]
        error = float(np.mean(np.minimum(np.abs(relative @ tried - 1), 1)))
        if error < best_error:
            best, best_error = tried, error
        solved = _least_absolute(relative)
        if np.all(np.abs(solved - tried) <= SETTLED * solved):
            break
        tried = solved
    return Fitted(*best.tolist())


def errors(cell: Cell, machine: Fitted) -> Error:
    """Predict `cell` on `machine`, and compare."""
    predicted = sorted(cell.simulated(machine).turns, key=_place)
    served = sorted(cell.turns, key=_place)
    theirs, ours = outcome(served), outcome(predicted)
    return Error(
        ttft=median(
            abs((one.first - one.due) / (other.first - other.due) - 1)
            for one, other in zip(predicted, served, strict=True)
        ),
        latency=median(
            abs(one / other - 1)
            for one, other in zip(workflow_latencies(predicted), workflow_latencies(served), strict=True)
        ),
        p95=ours.p95 / theirs.p95 - 1,
        throughput=ours.throughput / theirs.throughput - 1,
        cached=(ours.cached - theirs.cached) / theirs.prompt,
    )


def _place(turn: Row) -> tuple[int, int]:
    return turn.workflow, turn.turn


def _measured(turns: Sequence[Row]) -> np.ndarray:
    """[2T]: each turn's time to the first token, then each turn's time from there to its end; 0 for a single token."""
    ordered = sorted(turns, key=_place)
    first = [turn.first - turn.due for turn in ordered]
    rest = [turn.end - turn.first for turn in ordered]
    return np.array(first + rest)


def _counts(run: Run, turn: float) -> np.ndarray:
    """[2T, 7]: what each constant is multiplied with to give the times that `_measured` lists, in `run`.

    A request may get there while a step runs; of that step it waits for the rest, in proportion.
    """
    times = [0.0]
    totals = [np.zeros(6)]
    for began, ended, step in run.steps:
        if began > times[-1]:
            times.append(began)
            totals.append(totals[-1])
        times.append(ended)
        totals.append(totals[-1] + _features(step))
    sums = np.array(totals)

    def until(moments: list[float]) -> np.ndarray:
        return np.stack([np.interp(moments, times, sums[:, column]) for column in range(sums.shape[1])], axis=1)

    ordered = sorted(run.turns, key=_place)
    sent = until([served.sent + turn for served in ordered])
    first = until([served.first for served in ordered])
    end = until([served.end for served in ordered])
    once = np.concatenate([np.ones(len(ordered)), np.zeros(len(ordered))])
    return np.column_stack([once, np.concatenate([first - sent, end - first])])


def _features(step: Step) -> np.ndarray:
    """[6]: what `Fitted`'s constants but the first are multiplied with."""
    counts = (1, step.rows, step.pairs) if step.prefill else (1, step.rows, step.kv)
    return np.array([*counts, 0, 0, 0] if step.prefill else [0, 0, 0, *counts], dtype=float)


def _least_absolute(matrix: np.ndarray) -> np.ndarray:
    """The x >= 0, [n], for which the absolute errors of `matrix` @ x, [m, n] @ [n], from 1 have the least sum."""
    weights = np.ones(len(matrix))
    for _ in range(REWEIGHTED):
        found = _least_squares(matrix * weights[:, None], weights)
        weights = 1 / np.sqrt(np.maximum(np.abs(matrix @ found - 1), EXACT))
    return found


def _least_squares(matrix: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """The x >= 0, [n], for which `matrix` @ x, [m, n] @ [n], is nearest to `wanted`, [m].

    Constants that would come out negative are left out one by one, the lowest first.
    """
    scale = np.maximum(np.abs(matrix).max(axis=0), 1e-300)
    scaled = matrix / scale
    kept = [column for column in range(matrix.shape[1]) if scaled[:, column].any()]
    found = np.zeros(matrix.shape[1])
    while kept:
        solved = np.linalg.lstsq(scaled[:, kept], wanted, rcond=None)[0]
        lowest = int(np.argmin(solved))
        if solved[lowest] >= 0:
            found[kept] = solved
            break
        del kept[lowest]
    return found / scale


def _first_guess(turns: Sequence[Row]) -> Fitted:
    """From the turns that were disturbed least: a token of prefill, and a decode step."""
    rows = [(turn.first - turn.due) / (turn.prompt - turn.cached) for turn in turns]
    steps = [(turn.end - turn.first) / (turn.output - 1) for turn in turns if turn.output > 1]
    return Fitted(
        prefill_row=float(np.quantile(rows, 0.1)), decode_step=float(np.quantile(steps, 0.1)) if steps else 0.0
    )
