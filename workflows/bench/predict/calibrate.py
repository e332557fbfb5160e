"""A machine whose constants are fitted to what a load on it took, and how far its predictions are from other loads.

For a CPU a data sheet says little: what a step takes there is calls of operators and kernels far from the peak. So a
step's time is taken as linear in its counts, with constants of their own for prefill and decode, and for each scheme,
as the schemes run different kernels.

What is fitted: the seven constants of `Fitted`, on the time to the first token and the time from there to the end of
every turn in the cells given. A turn's time is not one step's: it waits for others' and shares its own. The simulation
knows which steps lay between: a turn's time is the constants times the counts of those steps, summed. This is linear in
the constants as long as the steps stay the same, so: simulate, solve by least squares of relative errors, and again
with the new constants until they stay (a Gauss-Newton iteration that leaves out how steps move with the constants).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass
from statistics import median

import numpy as np

from descant.workflows.bench.predict.outcome import latencies, outcome, schedule_of
from descant.workflows.bench.predict.scheme import scheme_named
from descant.workflows.bench.predict.simulate import Limits, Run, Served, simulate
from descant.workflows.bench.predict.step import Step

ITERATIONS = 30
SETTLED = 1e-9  # relative change of the constants


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
    turns: tuple[Served, ...]

    @property
    def name(self) -> str:
        return f"{self.scheme}, {self.agents} agents, {self.rate:g}/s"

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
    """The constants that fit `cells` best, all of one scheme on one machine."""
    measured = np.concatenate([_measured(cell.turns) for cell in cells])
    machine = _first_guess([turn for cell in cells for turn in cell.turns])
    best, best_error = machine, np.inf
    for _ in range(ITERATIONS):
        counts = np.concatenate([_counts(cell.simulated(machine), machine.turn) for cell in cells])
        error = float(np.median(np.abs(counts @ np.array(astuple(machine)) / measured - 1)))
        if error < best_error:
            best, best_error = machine, error
        solved = Fitted(*_nonnegative(counts / measured[:, None]))
        moved = np.abs(np.array(astuple(solved)) - np.array(astuple(machine)))
        if np.all(moved <= SETTLED * np.array(astuple(solved))):
            break
        machine = solved
    return best


def errors(cell: Cell, machine: Fitted) -> Error:
    """Predict `cell` on `machine`, and compare."""
    predicted = sorted(cell.simulated(machine).turns, key=_place)
    served = sorted(cell.turns, key=_place)
    theirs, ours = outcome(served), outcome(predicted)
    return Error(
        ttft=median(
            abs((one.first_token - one.due) / (other.first_token - other.due) - 1)
            for one, other in zip(predicted, served, strict=True)
        ),
        latency=median(
            abs(one / other - 1) for one, other in zip(latencies(predicted), latencies(served), strict=True)
        ),
        p95=ours.p95 / theirs.p95 - 1,
        throughput=ours.throughput / theirs.throughput - 1,
        cached=(ours.cached - theirs.cached) / theirs.prompt,
    )


def _place(turn: Served) -> tuple[int, int]:
    return turn.workflow, turn.turn


def _measured(turns: Sequence[Served]) -> np.ndarray:
    """[2T]: each turn's time to the first token, then each turn's time from there to its end; both above 0."""
    ordered = sorted(turns, key=_place)
    first = [turn.first_token - turn.due for turn in ordered]
    rest = [turn.end - turn.first_token for turn in ordered]
    return np.maximum(np.array(first + rest), 1e-6)


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
    first = until([served.first_token for served in ordered])
    end = until([served.end for served in ordered])
    once = np.concatenate([np.ones(len(ordered)), np.zeros(len(ordered))])
    return np.column_stack([once, np.concatenate([first - sent, end - first])])


def _features(step: Step) -> np.ndarray:
    """[6]: what `Fitted`'s constants but the first are multiplied with."""
    counts = (1, step.rows, step.pairs) if step.prefill else (1, step.rows, step.kv)
    return np.array([*counts, 0, 0, 0] if step.prefill else [0, 0, 0, *counts], dtype=float)


def _nonnegative(matrix: np.ndarray) -> list[float]:
    """The x >= 0, [n], for which `matrix` @ x, [m, n] @ [n], is near 1 everywhere, by least squares.

    Constants that would come out negative are left out one by one, the lowest first.
    """
    scale = np.maximum(np.abs(matrix).max(axis=0), 1e-300)
    scaled = matrix / scale
    kept = [column for column in range(matrix.shape[1]) if scaled[:, column].any()]
    found = np.zeros(matrix.shape[1])
    while kept:
        solved = np.linalg.lstsq(scaled[:, kept], np.ones(len(matrix)), rcond=None)[0]
        lowest = int(np.argmin(solved))
        if solved[lowest] >= 0:
            found[kept] = solved
            break
        del kept[lowest]
    return list(found / scale)


def _first_guess(turns: Sequence[Served]) -> Fitted:
    """From the turns that were disturbed least: a token of prefill, and a decode step."""
    row = np.quantile([(turn.first_token - turn.due) / (turn.prompt_tokens - turn.cached_tokens) for turn in turns], 0.1)
    steps = [(turn.end - turn.first_token) / (turn.output_tokens - 1) for turn in turns if turn.output_tokens > 1]
    return Fitted(prefill_row=float(row), decode_step=float(np.quantile(steps, 0.1)) if steps else 0.0)
