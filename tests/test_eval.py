"""`descant eval hotpotqa` on the real engine: interrupted, resumed, with questions that fail, on a server that dies."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import tiny
from commands import begin, descant, events, here, read_until, refused, wait_for
from deployments import DEPLOYMENTS, on
from engine import Server
from hypothesis import given
from hypothesis import strategies as st

from descant.workflows.report import bootstrap, wilson

STEPS = ("--steps", 2)


def write_questions(file: Path, texts: Sequence[str]) -> Path:
    lines = [
        {
            "id": f"q{number}",
            "question": text,
            "answer": "Lule",
            "type": "bridge",
            "level": "easy",
            "context": [["Lule", ["Lule is a river."]], [f"Town {number}", ["A town."]]],
            "supporting_facts": [],
        }
        for number, text in enumerate(texts)
    ]
    file.write_text("\n".join(map(json.dumps, lines)) + "\n")
    return file


def records(folder: Path) -> list[dict[str, Any]]:
    file = folder / "results.jsonl"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


@on("roomy")
def test_an_eval_that_was_cut_off_goes_on(
    server: Server,
    checkpoint: Callable[[str], tiny.Checkpoint],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also: a question that fails is recorded; a line that was cut off is made again."""
    texts = [f"Which river crosses town {number}?" for number in range(12)]
    texts[3] = "\0"  # nothing is left of it once it is clean
    file, output = write_questions(tmp_path / "questions.jsonl", texts), tmp_path / "out"
    arguments = ("eval", "hotpotqa", file, *STEPS, "--server", server.url, "--output", output, "--concurrency", 3)
    child = begin(*arguments, "--json", cache=tmp_path)
    wait_for(lambda: len(records(output)) >= 4 or child.poll() is not None)
    child.send_signal(signal.SIGINT)
    assert child.wait(20) == 130
    done = records(output)
    assert 4 <= len(done) < len(texts)
    with (output / "results.jsonl").open("a") as results:
        results.write('{"id": "q11", "exact')

    resumed = descant(*arguments, "--json", cache=tmp_path)
    assert f"{len(done)} of 12 questions are in {output} already; going on from there." in resumed.stderr
    every = records(output)
    assert every[: len(done)] == done
    assert sorted(record["id"] for record in every) == sorted(f"q{number}" for number in range(12))
    (failed,) = [record for record in every if record["error"]]
    assert (failed["id"], failed["ended"]) == ("q3", "error")
    assert "There is no question" in failed["error"]

    report = json.loads(resumed.stdout)
    assert report == json.loads((output / "report.json").read_text())
    turns = [turn for record in every for turn in record["turns"]]
    assert (report["questions"], report["errors"], report["turns"]) == (12, 1, len(turns))
    assert report["exact_match"] == sum(record["exact_match"] for record in every) / 12
    assert report["answered"] == sum(record["answer"] is not None for record in every) / 12
    assert sum(report["ended"].values()) == 12
    assert report["generated_tokens"] == sum(turn["output_tokens"] for turn in turns)
    assert report["cached_tokens"] == sum(turn["cached_tokens"] for turn in turns)
    assert 0 < report["cross_agent_share"] <= report["cached_share"] < 1

    table = descant(*arguments, cache=tmp_path).stdout
    assert "Exact match" in table
    assert "Wilson" in table

    # Finished, so no server of its own is started, for which stand-in adapters would be made.
    alone = (*arguments[:5], *arguments[7:], "--model", checkpoint("roomy").model, "--no-examples")
    monkeypatch.setenv("DESCANT_CACHE", str(tmp_path))
    again = here(*alone, "--json")
    assert json.loads(again.stdout) == report
    assert again.stderr.splitlines() == [f"All of the 12 questions are in {output} already."]
    assert "are of another eval (its examples differ)" in refused(*alone[:-1])
    assert not list(tmp_path.glob("standins-*"))

    other = descant(*arguments, "--workflow", "reflexion", cache=tmp_path, status=1)
    assert "are of another eval (its workflow, adapters differ)" in " ".join(other.stderr.split("\n"))


def test_what_a_user_gets_wrong_is_one_sentence(tmp_path: Path) -> None:
    file = write_questions(tmp_path / "questions.jsonl", ["Which?"])
    at = ("--output", tmp_path / "out", "--server", "http://127.0.0.1:9")
    assert "There is no workflow 'sing'" in refused("eval", "hotpotqa", file, "--workflow", "sing", *at)
    assert "cannot be read" in refused("eval", "hotpotqa", tmp_path / "no", *at)
    assert "cannot be reached" in refused("eval", "hotpotqa", file, *at)
    assert "cannot be written" in refused("eval", "hotpotqa", file, *at[2:], "--output", file / "out")


@on("roomy")
def test_a_server_that_dies(
    server: Server, checkpoint: Callable[[str], tiny.Checkpoint], serve: Callable[..., Server], tmp_path: Path
) -> None:
    """An eval and a run are ended by it in a sentence, and go on with another server."""
    texts = [f"Which river crosses town {number}?" for number in range(40)]
    file, output = write_questions(tmp_path / "questions.jsonl", texts), tmp_path / "out"
    arguments = ("eval", "hotpotqa", file, *STEPS, "--output", output, "--limit", 14, "--concurrency", 2)
    run = ("run", "react", "Which?", *STEPS, "--json", "--thread")

    expected = events(descant(*run, "whole", "--server", server.url, cache=tmp_path).stdout)[-1]
    evaluation = begin(*arguments, "--server", server.url, cache=tmp_path)
    wait_for(lambda: len(records(output)) >= 2 or evaluation.poll() is not None)
    evaluation.send_signal(signal.SIGSTOP)  # while the run gets ready
    child = begin(*run, "cut", "--server", server.url, cache=tmp_path)
    read_until(child, lambda event: event["event"] == "turn_end")
    os.killpg(server.process.pid, signal.SIGKILL)
    evaluation.send_signal(signal.SIGCONT)
    for process, words in ((evaluation, "is gone, and the eval with it"), (child, "The server at")):
        assert process.wait(30) == 1
        assert process.stderr is not None
        said = process.stderr.read()
        assert words in said
        assert "Traceback" not in said
    done = records(output)
    assert 2 <= len(done) < 14
    assert not any(record["error"] for record in done)

    server = serve(checkpoint("roomy"), kv_sharing="icarus", **DEPLOYMENTS["roomy"])
    result = events(descant("run", "--resume", "cut", "--server", server.url, "--json", cache=tmp_path).stdout)[-1]
    assert (result["answer"], result["ended"], result["state"]) == (
        expected["answer"],
        expected["ended"],
        expected["state"],
    )
    descant(*arguments, "--server", server.url, cache=tmp_path)
    assert records(output)[: len(done)] == done
    assert len(records(output)) == 14


@given(st.integers(1, 500), st.data())
def test_wilsons_interval_holds_the_share_and_shrinks(trials: int, data: st.DataObject) -> None:
    successes = data.draw(st.integers(0, trials))
    low, high = wilson(successes, trials)
    assert 0 <= low <= successes / trials + 1e-9
    assert successes / trials - 1e-9 <= high <= 1
    narrower = wilson(4 * successes, 4 * trials)
    assert narrower[1] - narrower[0] < high - low


def test_intervals_against_known_values() -> None:
    assert wilson(0, 30) == pytest.approx((0, 0.1135), abs=1e-3)
    assert wilson(15, 30) == pytest.approx((0.3315, 0.6685), abs=1e-3)
    low, high = bootstrap([0.0, 1.0] * 50)
    assert (low, high) == pytest.approx((0.4, 0.6), abs=0.03)
    assert bootstrap([0.0] * 5) == (0.0, 0.0)
