"""The guard: processes end with their owner, however it ends. Here small ones; test_runtime_server.py has real ones."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from descant.runtime import guard

# A parent, its child, and a grandchild that loses its parent and ignores SIGTERM; the pids go to a file.
TREE = """
import os, signal, subprocess, sys, time
pids = open(sys.argv[1], "a")
print(os.getpid(), file=pids, flush=True)
orphan = "import os, signal as s, time; s.signal(s.SIGTERM, s.SIG_IGN); print(os.getpid(), flush=True); time.sleep(600)"
middle = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {orphan!r}])"
subprocess.run([sys.executable, "-c", middle], stdout=pids, check=True)
time.sleep(600)
"""


def start(grace: float, *command: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-m", guard.__name__, str(grace), *command], stdin=subprocess.PIPE)


@pytest.fixture
def tree(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[bytes], list[psutil.Process]]]:
    pids = tmp_path / "pids"
    process = start(1.0, sys.executable, "-c", TREE, str(pids))
    deadline = time.monotonic() + 20
    while not pids.exists() or len(pids.read_text().split()) < 2:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    below = [psutil.Process(int(pid)) for pid in pids.read_text().split()]
    yield process, below
    for left in below:
        if left.is_running():
            left.kill()
    process.kill()
    process.wait()


def test_a_command_that_ends_gives_its_status() -> None:
    assert start(1.0, sys.executable, "-c", "raise SystemExit(7)").wait(20) == 7
    assert start(1.0, sys.executable, "-c", "import os; os.kill(os.getpid(), 9)").wait(20) == 128 + 9


def test_closing_the_pipe_ends_all_below(tree: tuple[subprocess.Popen[bytes], list[psutil.Process]]) -> None:
    process, below = tree
    assert process.stdin is not None
    process.stdin.close()
    assert process.wait(20) == 128 + signal.SIGTERM
    assert not [left for left in below if left.is_running()]


def test_sigterm_to_the_guard_ends_all_below(tree: tuple[subprocess.Popen[bytes], list[psutil.Process]]) -> None:
    process, below = tree
    process.terminate()
    process.wait(20)
    assert not [left for left in below if left.is_running()]


def test_a_ctrl_c_is_left_to_the_owner(tree: tuple[subprocess.Popen[bytes], list[psutil.Process]]) -> None:
    process, below = tree
    process.send_signal(signal.SIGINT)
    time.sleep(0.5)
    assert process.poll() is None
    assert all(one.is_running() for one in below)


def test_the_command_dies_if_the_guard_is_killed(tree: tuple[subprocess.Popen[bytes], list[psutil.Process]]) -> None:
    process, below = tree
    process.kill()
    process.wait(20)
    assert not psutil.wait_procs(below[:1], timeout=5)[1]
