"""`descant bench report`: a benchmark's file as Markdown tables."""

from __future__ import annotations

import shlex
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from descant.workflows.bench.cells import COUNT, POSITIVE, WORDS, Bench, Cell, shaped
from descant.workflows.bench.measures import Spread, spreads
from descant.workflows.bench.peak import peak
from descant.workflows.bench.search import Plan, next_cell
from descant.workflows.bench.words import counted

BEGINNING = "Measured on "
BASELINE = "nonshared"
# ICaRus, figure 4: Llama-3.1-8B on A100-80GB under vLLM, ReAct; by number of agents the reduction of P95 latency at the
# rate where the conventional way's throughput peaks, and the gain in maximum throughput.
PAPER: Mapping[int, tuple[float, float]] = {2: (3.8, 1.4), 4: (5.1, 2.3), 8: (11.1, 3.8)}

PLANNED: Mapping[str, Any] = {
    "schemes": [WORDS],
    "agents": [COUNT],
    "rates": [POSITIVE],
    "start": POSITIVE,
    "fill": bool,
    "repeats": COUNT,
}


@dataclass(frozen=True)
class Point:
    """One scheme at one rate, over all repeats that succeeded."""

    scheme: str
    agents: int
    rate: float
    cells: Sequence[Cell]
    measures: Mapping[str, Spread]


def points(bench: Bench) -> list[Point]:
    """By number of agents, scheme and rate."""
    groups: dict[tuple[int, str, float], list[Cell]] = defaultdict(list)
    for key, cell in bench.cells.items():
        if cell.error is None:
            groups[key.agents, key.scheme, key.rate].append(cell)
    order = list(bench.recipe["schemes"])
    return [
        Point(scheme, agents, rate, cells, spreads([cell.measures for cell in cells]))
        for (agents, scheme, rate), cells in sorted(
            groups.items(), key=lambda item: (item[0][0], order.index(item[0][1]), item[0][2])
        )
    ]


def curve(every: Sequence[Point], scheme: str, agents: int) -> list[Point]:
    """A scheme's points for one number of agents, by rate."""
    return [point for point in every if (point.scheme, point.agents) == (scheme, agents)]


def fastest(points_of_one: Sequence[Point]) -> Point:
    """The point whose median throughput is highest."""
    return max(points_of_one, key=lambda point: point.measures["workflows_per_s"].median)


def render(bench: Bench) -> str:
    """The whole report, as Markdown."""
    every = points(bench)
    parts = [_conditions(bench), _incomplete(bench), _headline(every), _full(every)]
    if failures := [cell for cell in bench.cells.values() if cell.error is not None]:
        parts.append("**Without a measurement**\n\n" + "\n".join(_failure(cell) for cell in failures))
    return "\n\n".join(part for part in parts if part) + "\n"


def _conditions(bench: Bench) -> str:
    recipe, machine = bench.recipe, bench.recipe["machine"]
    turns = recipe["trace"]["turns"]
    versions = ", ".join(f"{name} {number}" for name, number in recipe["versions"].items())
    gpus = ", ".join(machine["gpus"]) or "no GPU"
    commands = "\n".join(dict.fromkeys(f"    {shlex.join(start['command'])}" for start in bench.started))
    return (
        f"{BEGINNING}{machine['cores']} cores, {machine['cpu']}, {machine['memory_gib']} GiB, {gpus}; {versions}.\n"
        f"Model {recipe['model']}; adapters: {recipe['adapters']}.\n"
        f"Load: {counted(recipe['workflows'], 'workflow')} a cell, each of {counted(len(turns), 'turn')} and "
        f"{recipe['trajectory']:,} tokens at its end (scale {recipe['scale']:g}), agents {recipe['choice']}, "
        f"seed {recipe['seed']}. KV pool: {recipe['pool_tokens']:,} tokens, "
        f"{recipe['pool_tokens'] / recipe['trajectory']:.3g} workflows, "
        f"under every scheme; at most {recipe['max_running']} requests at once.\n"
        "Medians over repeats, in brackets the lowest and the highest.\n\n"
        f"{commands}"
    )


def _incomplete(bench: Bench) -> str:
    """That cells are missing, as far as the recipe says which there are."""
    try:
        shaped(bench.recipe, PLANNED, "the recipe")
    except ValueError:
        return ""
    plan = Plan(**{name: bench.recipe[name] for name in PLANNED})
    done = {key: cell.measures["workflows_per_s"] if cell.error is None else None for key, cell in bench.cells.items()}
    failed = sum(value is None for value in done.values())
    if next_cell(plan, done) is None and not failed:
        return ""
    measured = len(done) - failed
    found = f"{measured} of {counted(plan.count, 'cell')}" if plan.count else counted(measured, "cell")
    rest = "" if plan.count else "; saturation has not been found everywhere"
    return f"**Incomplete: measured so far {found}{rest}.** The same command goes on with the rest."


def _headline(every: Sequence[Point]) -> str:
    head = [
        "agents",
        "scheme",
        f"rate where {BASELINE} peaks",
        "P95 of a workflow there",
        "reduction",
        "P95 of a turn there",
        "reduction",
        "paper's",
        "maximum throughput, workflows/s",
        "gain",
        "paper's",
    ]
    rows = []
    schemes = list(dict.fromkeys(point.scheme for point in every))
    for agents in sorted({point.agents for point in every}):
        base = curve(every, BASELINE, agents)
        if not base:
            continue
        at = peak({point.rate: point.measures["workflows_per_s"].median for point in base})
        top = next(point for point in base if point.rate == at)
        highest = fastest(base)
        for scheme in schemes:
            own = curve(every, scheme, agents)
            if scheme == BASELINE or not own:
                continue
            there = next((point for point in own if point.rate == top.rate), None)
            paper = PAPER.get(agents, (None, None)) if scheme == "icarus" else (None, None)
            best = fastest(own)
            rows.append(
                [
                    str(agents),
                    scheme,
                    f"{top.rate:.3g}/s",
                    *_reduced(top, there, "workflow_p95"),
                    *_reduced(top, there, "turn_p95"),
                    _times(paper[0]),
                    f"{_median(highest, 'workflows_per_s')} → {_median(best, 'workflows_per_s')}",
                    _times(best.measures["workflows_per_s"].median / highest.measures["workflows_per_s"].median),
                    _times(paper[1]),
                ]
            )
    if not rows:
        return ""
    note = (
        f"Against {BASELINE}. The paper's are those of ICaRus's figure 4: Llama-3.1-8B on A100-80GB under vLLM, ReAct. "
        "Its load, model and machine are others, so they stand here for orientation."
    )
    return f"{table(head, rows)}\n\n{note}"


def _reduced(base: Point, other: Point | None, name: str) -> tuple[str, str]:
    if other is None:
        return "not measured", ""
    before, after = base.measures[name].median, other.measures[name].median
    return f"{before:.2f} → {after:.2f} s", _times(before / after)


COLUMNS: Sequence[tuple[str, str, str, float]] = (  # head, measure, format, factor
    ("workflows/s", "workflows_per_s", ".3g", 1),
    ("tokens generated/s", "output_per_s", ".3g", 1),
    ("TTFT p50, s", "ttft_p50", ".2f", 1),
    ("p90", "ttft_p90", ".2f", 1),
    ("p99", "ttft_p99", ".2f", 1),
    ("turn p50, s", "turn_p50", ".2f", 1),
    ("P95", "turn_p95", ".2f", 1),
    ("workflow p50, s", "workflow_p50", ".2f", 1),
    ("P95", "workflow_p95", ".2f", 1),
    ("of a turn: queue, s", "queue_mean", ".2f", 1),
    ("prefill", "prefill_mean", ".2f", 1),
    ("decode", "decode_mean", ".2f", 1),
    ("cached, %", "cached_share", ".1f", 100),
    ("from another agent, %", "cross_agent_share", ".1f", 100),
    ("KV held, mean", "kv_held_mean", ",.0f", 1),
    ("peak", "kv_held_peak", ",.0f", 1),
    ("peak of running", "kv_running_peak", ",.0f", 1),
    ("tokens evicted", "evicted_tokens", ",.0f", 1),
    ("retractions", "retracted_requests", ",.0f", 1),
    ("RSS peak, MiB", "rss_peak", ",.0f", 2**-20),
)


def _full(every: Sequence[Point]) -> str:
    rows = [
        [
            str(point.agents),
            point.scheme,
            f"{point.rate:.3g}",
            str(len(point.cells)),
            *(_spread(point.measures.get(name), form, factor) for _, name, form, factor in COLUMNS),
        ]
        for point in every
    ]
    return table(["agents", "scheme", "rate, /s", "repeats", *(head for head, *_ in COLUMNS)], rows)


def _spread(spread: Spread | None, form: str, factor: float) -> str:
    if spread is None:
        return "-"
    median = f"{spread.median * factor:{form}}"
    if spread.repeats == 1:
        return median
    return f"{median} ({spread.low * factor:{form}}…{spread.high * factor:{form}})"


def _failure(cell: Cell) -> str:
    key = cell.key
    reason = (cell.error or "").splitlines()[0]
    return f"- {counted(key.agents, 'agent')}, {key.scheme}, {key.rate:.3g}/s, repeat {key.repeat}: {reason}"


def _median(point: Point, name: str) -> str:
    return f"{point.measures[name].median:.3g}"


def _times(ratio: float | None) -> str:
    return "" if ratio is None else f"{ratio:.2f}x" if ratio < 10 else f"{ratio:.1f}x"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table."""
    return "\n".join(f"| {' | '.join(line)} |" for line in (head, ["---"] * len(head), *rows))
