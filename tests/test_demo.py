"""`descant demo` on the real model and the real engine, and what it leaves behind: nothing."""

from __future__ import annotations

import io
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
import tiny
from rich.console import Console

from descant.runtime.cache import cache_dir
from descant.workflows.serving import standins

DESCANT = Path(sys.executable).with_name("descant")
PATIENCE_S = 180


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """That of a machine which has not run the demo: its cache holds no more than the compiled operators, which other
    tests compile.
    """
    cache, scratch = tmp_path / "cache", tmp_path / "tmp"
    for folder in (cache, scratch):
        folder.mkdir()
    for library in cache_dir().glob("operators-*.so"):
        shutil.copy(library, cache)
    return {**os.environ, "DESCANT_CACHE": str(cache), "TMPDIR": str(scratch), "COLUMNS": "100"}


def left_behind(environment: dict[str, str]) -> list[Path]:
    """Logs and scratch folders."""
    return list(Path(environment["TMPDIR"]).glob("descant-*"))


def test_the_demo_answers_its_question_and_shows_what_sharing_saved(environment: dict[str, str]) -> None:
    wide = {**environment, "COLUMNS": "250"}  # a line of the transcript is a line
    result = subprocess.run([DESCANT, "demo"], capture_output=True, text=True, timeout=540, env=wide)
    assert result.returncode == 0, result.stderr
    shown = result.stdout
    assert "\x1b" not in shown, "escape codes in a pipe"
    assert "SmolLM2-135M-Instruct is ready" in shown
    assert "trained for ICaRus" in shown
    transcript = shown.split("Question  ")[1].split("\n", 1)[1].split("prompt  icarus")[0]
    said = re.findall(r"^(plan|act|reflect|tool|) +(.+)$", transcript, re.MULTILINE)
    speakers = [who for who, text in said if text.strip()]
    assert speakers == [*["plan", "", "act", "tool"] * 2, "plan", "", "act", "tool", "reflect", ""]
    texts = [text for _, text in said if text.strip()]
    assert [texts[1], texts[5], texts[9]] == ["Action: Lookup", "Action: Lookup", "Action: Finish"]
    assert [texts[2], texts[6], texts[10]] == ["[Portugal]", "[Mongolia]", "[Lisbon and Ulaanbaatar]"]
    assert texts[13] == "Action: Reflect[right]"

    row = r"^ +(\d+) +(plan|act|reflect) +(\d+) +(\d+) +(\d+) +[\d.]+ s +(\d+) +[\d.]+ s *$"
    rows = re.findall(row, shown, re.MULTILINE)
    assert [agent for _, agent, *_ in rows] == [*["plan", "plan", "act"] * 3, "reflect", "reflect"]
    before, own = 0, {"plan": 0, "act": 0, "reflect": 0}
    for _, agent, *counts in rows:
        prompt, cached, crossed, alone = map(int, counts)
        # Shared: all that any agent has read is cached. Alone: at least what the agent itself has read.
        assert before <= cached < prompt
        assert own[agent] <= alone <= cached
        assert crossed == cached or own[agent] > 0
        before = own[agent] = prompt
    assert re.search(r"Prefilled: \d+ tokens under icarus, \d+ under nonshared \(\d\.\d times as many\)", shown)
    assert not left_behind(environment)


def test_a_second_start_makes_nothing_again(environment: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DESCANT_CACHE", environment["DESCANT_CACHE"])
    said = io.StringIO()
    standins(Console(file=said), None)
    assert "is ready" in said.getvalue()
    made = {path: path.stat().st_mtime_ns for path in cache_dir().rglob("*")}
    said = io.StringIO()
    model, adapters = standins(Console(file=said), None)
    assert {model, *adapters.values()} <= made.keys()
    assert {path: path.stat().st_mtime_ns for path in cache_dir().rglob("*")} == made
    assert "ready" not in said.getvalue()


@pytest.mark.parametrize(
    ("number", "moment", "status"),
    [
        pytest.param(signal.SIGINT, "Thought:", 130, id="ctrl-c in a turn"),
        pytest.param(signal.SIGTERM, "Question", 143, id="term at the server's start"),
        pytest.param(signal.SIGKILL, "Question", -signal.SIGKILL, id="kill at the server's start"),
    ],
)
def test_no_process_is_left(
    environment: dict[str, str],
    checkpoint: Callable[[str], tiny.Checkpoint],
    number: int,
    moment: str,
    status: int,
) -> None:
    """Nor a log, where there is a chance to remove it. With a tiny model, which starts sooner."""
    start = time.monotonic()
    demo = subprocess.Popen(
        [DESCANT, "demo", "--no-replay", "--model", checkpoint("roomy").model],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment,
    )
    try:
        shown = ""
        assert demo.stdout is not None
        while moment not in shown:
            assert time.monotonic() - start < PATIENCE_S
            piece = demo.stdout.read(1)
            assert piece, shown
            shown += piece
        if moment == "Question":
            while len(psutil.Process(demo.pid).children(recursive=True)) < 2:  # the guard and the server
                time.sleep(0.05)
            time.sleep(1)
        below = psutil.Process(demo.pid).children(recursive=True)
        demo.send_signal(number)
        assert demo.wait(30) == status
        # After SIGKILL it is the guard that sees to it, and needs a moment.
        _, left = psutil.wait_procs(below, timeout=0.1 if number != signal.SIGKILL else 30)
        assert not left
        assert "Traceback" not in demo.stdout.read()
        assert number == signal.SIGKILL or not left_behind(environment)
    finally:
        demo.kill()
