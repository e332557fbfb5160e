"""What needs no server of `descant run` and `descant eval`: locks, addresses, damaged files, steps that do not end."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from pathlib import Path

import pytest

from descant.runtime.client import Client
from descant.runtime.errors import DescantError
from descant.workflows.limits import Limits
from descant.workflows.results import Results
from descant.workflows.run import alone
from descant.workflows.step import Node, Step
from descant.workflows.user_graph import user_graph


def test_a_thread_runs_in_one_process_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DESCANT_CACHE", str(tmp_path))
    code = "from descant.workflows.run import alone\nwith alone('t'): print('in', flush=True); input()"
    other = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert other.stdout is not None
        assert other.stdout.readline() == "in\n"
        with pytest.raises(DescantError, match="going on in another process"), alone("t"):
            pass
        with alone("another"):
            pass
    finally:
        other.kill()
        other.wait()
    with alone("t"):
        pass


@pytest.mark.parametrize(
    "address", ["127.0.0.1:30000", "http://", "ftp://host", "http://\udcff", "http://" + "a" * 70_000], ids="abcde"
)
def test_an_address_that_is_none_is_named(address: str) -> None:
    with pytest.raises(DescantError, match="write http://HOST:PORT"):
        Client(address)


def test_damaged_settings_are_named(tmp_path: Path) -> None:
    Results(tmp_path).begin({"limit": 1})
    Results(tmp_path).begin({"limit": 1})
    (tmp_path / "settings.json").write_text("{")
    with pytest.raises(DescantError, match=r"settings.json is damaged"):
        Results(tmp_path).begin({"limit": 1})


def test_a_file_that_exits_is_named(tmp_path: Path) -> None:
    (tmp_path / "json.py").write_text("raise SystemExit('bye')\n")
    with pytest.raises(DescantError, match=r"json.py.*cannot be run \(SystemExit: bye\)"):
        user_graph(f"{tmp_path / 'json.py'}:graph")


def test_a_cancelled_step_that_does_not_end_is_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Node, "_run", lambda *_: time.sleep(60))
    with Client("http://127.0.0.1:9") as client:
        node = Step("stuck", None, lambda s: None, frozenset(), Limits()).bind(client)

        async def cancelled() -> float:
            task = asyncio.create_task(node.arun({"ids": [1]}, {}))
            await asyncio.sleep(0.2)
            start = time.monotonic()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            return time.monotonic() - start

        assert asyncio.run(cancelled()) < 10
