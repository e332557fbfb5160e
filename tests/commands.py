"""The command `descant` as a child process, or in this process where only what it refuses is asked."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from typer.testing import CliRunner, Result

from descant.runtime.cli import app

DESCANT = Path(sys.executable).with_name("descant")
PATIENCE_S = 120


def descant(*arguments: object, cache: Path, status: int = 0) -> subprocess.CompletedProcess[str]:
    """Run it to its end and expect this status."""
    command = [DESCANT, *map(str, arguments)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, env=environment(cache))
    assert result.returncode == status, result.stdout + result.stderr
    return result


def environment(cache: Path) -> dict[str, str]:
    return {**os.environ, "DESCANT_CACHE": str(cache), "COLUMNS": "100"}


def events(output: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in output.splitlines()]


def begin(*arguments: object, cache: Path) -> subprocess.Popen[str]:
    """Start it, and do not wait."""
    return subprocess.Popen(
        [DESCANT, *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(cache),
    )


def read_until(child: subprocess.Popen[str], wanted: Callable[[Mapping[str, Any]], bool]) -> list[dict[str, Any]]:
    """The events of `descant run --json` up to the one that is wanted."""
    assert child.stdout is not None
    found: list[dict[str, Any]] = []
    for line in child.stdout:
        found.append(json.loads(line))
        if wanted(found[-1]):
            return found
    raise AssertionError(f"It ended with {child.wait()}: {child.stderr and child.stderr.read()}")


def wait_for(condition: Callable[[], bool], seconds: float = PATIENCE_S) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def here(*arguments: object, status: int = 0) -> Result:
    """As `descant`, in this process."""
    result = CliRunner().invoke(app, [*map(str, arguments)])
    assert result.exit_code == status, result.output
    return result


def refused(*arguments: object) -> str:
    """The one line with which it refuses, at status 1."""
    result = here(*arguments, status=1)
    assert not result.stdout
    lines = [line for line in result.stderr.splitlines() if line]
    assert len(lines) == 1, result.stderr
    return lines[0]
