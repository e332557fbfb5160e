"""What bench/cpu.py makes of its measurements: steps, ratios, verdicts, tables. No server."""

from __future__ import annotations

import importlib
import runpy
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).parents[1] / "bench"
sys.path.insert(0, str(BENCH))  # as `python bench/cpu.py` has it
report = importlib.import_module("cpu_report")
bench = runpy.run_path(str(BENCH / "cpu.py"))

SECONDS = ("step 1", "base step 1", "plain step 1", "step 8", "step 16", "base step 16", "prefill")
THEIRS = [f"Transformers {dtype} {what}" for dtype in ("bfloat16", "float32") for what in ("step", "prefill")]


def test_a_step_is_what_more_tokens_add_to_the_median_of_short_requests() -> None:
    assert bench["step_seconds"]([0.1, 9.0, 0.2], 1.8, 16) == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("bounds", "verdict"),
    [
        ({}, ""),
        ({"at_least": 2}, "met"),
        ({"at_least": 2.1}, "**missed**"),
        ({"at_most": 2}, "met"),
        ({"at_most": 1.9}, "**missed**"),
    ],
)
def test_the_median_decides_whether_a_target_is_met(bounds: dict[str, float], verdict: str) -> None:
    assert report.Row("", [1, 2, 30], **bounds).verdict == verdict


def test_a_table_shows_the_miss_beside_its_target() -> None:
    last = report.table("decode", [report.Row("ratio", [1.5, 1.25, 1.0], at_least=2)]).splitlines()[-1]
    assert last == "| ratio | 1.25 | 1.00 | 1.50 | ≥ 2 | **missed** |"


@pytest.mark.parametrize(("value", "text"), [(1234.5, "1,234"), (99.96, "100.0"), (0.0123, "0.0123"), (-0.5, "-0.50")])
def test_numbers_have_three_digits(value: float, text: str) -> None:
    assert report.number(value) == text


def test_a_drift_of_the_machine_cancels_in_ratios() -> None:
    drifting = {name: [0.01, 0.02, 0.04] for name in (*SECONDS, *THEIRS)}
    rows = report.decode_rows({**drifting, "stream": [100.0]}, weights=1)
    by_name = {row.what: list(row.values) for row in rows}
    assert by_name["ratio: 1 stream to Transformers, bfloat16"] == [1, 1, 1]
    assert by_name["ratio: 8 streams to 1"] == [8, 8, 8]
    assert by_name["ratio: 1 stream to the bandwidth limit, 100.0"] == [1, 0.5, 0.25]


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_the_prefill_target_is_on_the_served_dtype(dtype: str) -> None:
    rows = report.prefill_rows({name: [1.0] for name in (*SECONDS, *THEIRS)}, report.Sizes(), dtype)
    assert [row.what for row in rows if row.target] == [f"ratio: to Transformers, {dtype}"]


def test_every_other_repeat_runs_in_reverse_order() -> None:
    order: list[str] = []

    def noting(name: str) -> float:
        order.append(name)
        return len(order)

    figures = bench["repeated"]({"a": lambda: noting("a"), "b": lambda: noting("b")}, 3)
    assert "".join(order) == "abbaab"
    assert figures == {"a": [1, 4, 5], "b": [2, 3, 6]}
