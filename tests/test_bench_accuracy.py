"""bench/accuracy.py and bench/curves.py: the measures on records made by hand, one whole run on a tiny model."""

from __future__ import annotations

import importlib
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tiny
from hypothesis import given
from hypothesis import strategies as st

from descant.agents.standin import standin_adapters
from descant.agents.tools.geonames import Geonames
from descant.runtime.errors import DescantError
from descant.workflows.geography.questions import Atlas

sys.path.insert(0, str(Path(__file__).parents[1] / "bench"))  # as `python bench/accuracy.py` has it
bench = importlib.import_module("accuracy")
report = importlib.import_module("accuracy_report")
curves = importlib.import_module("curves")


def turn(agent: str, text: str, tokens: int = 5) -> dict[str, Any]:
    return {"agent": agent, "text": text, "output_tokens": tokens}


def record(number: int, *answers: tuple[str, str], key: str = "Lima", **changes: Any) -> dict[str, Any]:
    """A run with these answers and verdicts."""
    turns = [turn("plan", " I look."), turn("plan", " Lookup"), turn("act", "Peru]")]
    for answer, verdict in answers:
        turns += [turn("plan", " So."), turn("plan", " Finish"), turn("act", f"{answer}]")]
        turns += [turn("reflect", " It is."), turn("reflect", verdict)]
    right = bool(answers) and answers[-1][0] == key
    return {
        "id": f"city-{number}",
        "key": key,
        "exact_match": right,
        "ended": "answered",
        "error": None,
        "rounds": 1 + len(answers),
        "turns": turns,
        "observations": [{"ok": True}],
        **changes,
    }


def test_a_verdict_is_true_or_not_of_the_answer_before_it() -> None:
    assert report.verdicts(record(0, ("Cusco", "wrong"), ("Lima", "right"))) == [True, True]
    assert report.verdicts(record(0, ("the lima.", "wrong"), ("Cusco", "right"))) == [False, False]
    assert report.verdicts(record(0)) == []


@pytest.mark.parametrize(
    ("changes", "good"),
    [
        ({}, True),
        ({"ended": "limit of 2 verdicts"}, False),
        ({"error": "RequestError: …"}, False),
        ({"observations": [{"ok": False}]}, False),
        ({"turns": [turn("act", "Lima")]}, False),
        ({"turns": [turn("plan", " I", 64), turn("act", "Lima]")]}, False),
        ({"turns": [turn("plan", " I", 63), turn("act", "Lima]")]}, True),
    ],
)
def test_what_is_well_formed(changes: dict[str, Any], good: bool) -> None:
    assert report.well_formed(record(0, ("Lima", "right"), **changes)) is good


def test_mcnemar_against_known_values() -> None:
    assert report.mcnemar(0, 0) == 1.0
    assert report.mcnemar(5, 0) == pytest.approx(2 / 32)
    assert report.mcnemar(1, 9) == pytest.approx(2 * 11 / 1024)
    assert report.mcnemar(4, 4) == 1.0


@given(st.integers(0, 200), st.integers(0, 200))
def test_mcnemar_is_a_probability_and_knows_no_sides(a: int, b: int) -> None:
    assert 0 < report.mcnemar(a, b) == report.mcnemar(b, a) <= 1


def test_arms_are_compared_question_by_question() -> None:
    good = [record(number, ("Lima", "right")) for number in range(20)]
    half = [record(number, ("Lima" if number % 2 else "Cusco", "right")) for number in range(20)]
    difference, (low, high), p = report.paired(good, half)
    assert difference == 0.5
    assert 0.2 < low < 0.5 < high < 0.8
    assert p == pytest.approx(2 / 2**10)
    assert report.paired(half, half) == (0.0, (0.0, 0.0), 1.0)
    with pytest.raises(ValueError, match="different questions"):
        report.paired(good, half[1:])


def test_the_tables() -> None:
    arms = {
        "one": [record(number, ("Lima", "right")) for number in range(4)],
        "two": [
            record(number, ("Cusco", "right"), ("Lima", "wrong"), ended="limit of 2 verdicts") for number in range(4)
        ],
    }
    one, two = report.table(arms).splitlines()[2:]
    assert one.startswith(
        "| one | 100.0 % (51.0 to 100.0) | 100.0 % (51.0 to 100.0) | 100.0 % (51.0 to 100.0) | 2.0 (2.0"
    )
    assert two.startswith(
        "| two | 100.0 % (51.0 to 100.0) | 0.0 % (0.0 to 49.0) | 0.0 % (0.0 to 32.4) | 3.0 (3.0 to 3.0)"
    )
    assert report.comparisons(arms).splitlines()[2:] == ["| one - two | +0.0 (+0.0 to +0.0) | 1 |"]
    families = report.by_family(arms, lambda id: id.split("-")[0])
    assert families.splitlines()[2:] == ["| city | 4 of 4 | 4 of 4 |"]


def test_curves_of_two_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, second = tmp_path / "a.jsonl", tmp_path / "b.jsonl"
    lines = [
        {"step": 0, "eval_loss": 3},
        {"step": 5, "loss": 2},
        {"step": 10, "loss": 1.5},
        {"step": 10, "eval_loss": 1},
    ]
    first.write_text("".join(json.dumps({**line, "tokens": 9}) + "\n" for line in lines))
    second.write_text('{"step": 10, "loss": 1.25, "eval_loss": null}\n')
    curves.main([f"icarus={first}", f"lora={second}"])
    assert capsys.readouterr().out.splitlines() == [
        "| step | icarus: loss | icarus: eval loss | lora: loss | lora: eval loss |",
        "| --- | --- | --- | --- | --- |",
        "| 0 |  | 3.000 |  |  |",
        "| 10 | 1.500 | 1.000 | 1.250 |  |",
    ]
    second.write_text('{"loss": 1}\n')
    with pytest.raises(DescantError, match="line 1 is no line of a log"):
        curves.read(second)


def test_what_the_arms_lack_is_said_before_a_server_starts(tmp_path: Path) -> None:
    with pytest.raises(DescantError, match="give --lora FOLDER"):
        bench.main(["--output", str(tmp_path)])
    with pytest.raises(DescantError, match="arm lora needs an adapter in"):
        bench.main(["--lora", str(tmp_path), "--arms", "lora", "--output", str(tmp_path / "out")])


def test_a_whole_run_goes_on_where_it_was_cut_off(
    checkpoint: Callable[[str], tiny.Checkpoint],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Two arms of a tiny model with stand-ins, 4 questions."""
    monkeypatch.setenv("DESCANT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    model = checkpoint("roomy").model
    adapters = standin_adapters(model)["plan"].parent
    output = tmp_path / "out"
    # An icarus arm that was cut off in its third line.
    first = [question.id for question in Atlas(Geonames()).questions("test", bench.EACH)[:2]]
    done = [json.dumps({**record(0, ("Lima", "right")), "id": id}) + "\n" for id in first]
    (output / "icarus").mkdir(parents=True)
    (output / "icarus" / "results.jsonl").write_text("".join(done) + done[0][:20])
    words = ["--model", model, "--icarus", adapters, "--arms", "base", "icarus", "--output", output, "--limit", 4]
    words = [*map(str, words), "--steps", "2"]
    bench.main(words)
    shown = capsys.readouterr().out
    assert (output / "report.md").read_text() == shown
    assert re.search(r"^\| icarus \| [57]\d\.\d % \(\d+\.\d to \d+\.\d\) \| ", shown, re.MULTILINE)
    assert "| base - icarus | " in shown
    assert "| sum | " not in shown, "the fifth family"
    for arm in ("base", "icarus"):
        lines = (output / arm / "results.jsonl").read_text().splitlines(keepends=True)
        assert len(lines) == 4
        assert arm == "base" or lines[:2] == done
        records = [json.loads(line) for line in lines]
        assert not any(one["error"] for one in records)
        asked = {turn["adapter"] for one in records for turn in one["turns"] if "adapter" in turn}
        assert asked <= ({None} if arm == "base" else {"plan", "act", "reflect"})
    bench.main(words)  # without a server: all is there
    assert capsys.readouterr().out == shown
    with pytest.raises(DescantError, match=r"steps differ"):
        bench.main([*words[:-1], "3"])
