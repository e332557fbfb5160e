"""The examples, and the blocks of docs/agents.md, as a newcomer runs them: on the demo's model, all on one server."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from descant.workflows.serving import server_or_own

ROOT = Path(__file__).resolve().parent.parent
PATIENCE_S = 240


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """The server that each example would start by itself."""
    with server_or_own() as url:
        yield url


def run(script: Path, *arguments: str, folder: Path, answers: str = "", status: int = 0) -> str:
    """What the script prints."""
    done = subprocess.run(
        [sys.executable, str(script), *arguments],
        input=answers,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        cwd=folder,
    )
    assert done.returncode == status, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout


def example(name: str) -> Path:
    return ROOT / "examples" / f"{name}.py"


def test_two_agents(url: str, tmp_path: Path) -> None:
    shown = run(example("two_agents"), "--server", url, folder=tmp_path)
    assert "Observation: Portugal has 92,391 square kilometres.\n" in shown
    assert "Observation: Mongolia has 1,565,000 square kilometres.\n" in shown
    assert re.search(r"^Answer: (Portugal|Mongolia)$", shown, re.MULTILINE)
    turns = re.findall(r"^(planner|actor) +read +(\d+) tokens: +(\d+) from the cache, +(\d+) of them", shown, re.M)
    assert [name for name, *_ in turns] == ["planner", "planner", "actor"]
    before = 0
    for _, *counts in turns:
        prompt, cached, crossed = map(int, counts)
        assert before <= cached < prompt, "what an agent has read is in the cache for all"
        before = prompt
    assert crossed == cached, "the actor has not spoken before"


def test_approval(url: str, tmp_path: Path) -> None:
    script, server = example("approval"), ("--server", url)
    left = run(script, *server, folder=tmp_path, status=1)
    said = left[: left.index("\nRefund ")]
    proposed = re.search(r"Action: Refund\[(\d+)\]\n", said)
    assert proposed
    assert "were paid back" not in left
    # Another process goes on with what was said.
    paid = run(script, *server, "--yes", folder=tmp_path)
    assert paid.startswith(said)
    assert paid.endswith("\n\n")
    assert f"{said}Observation: {proposed[1]} euros were paid back.\nAnswer:" in paid
    refused = run(script, *server, "--thread", "2", folder=tmp_path, answers="n\n")
    assert f"Refund {proposed[1]} euros? [y/N]" in refused
    assert "Observation: The manager said no.\nAnswer:" in refused
    assert "were paid back" not in refused


def test_researchers(url: str, tmp_path: Path) -> None:
    shown = run(example("researchers"), "--server", url, folder=tmp_path)
    assert re.findall(r"^Note on (\w+): .+$", shown, re.MULTILINE) == ["food", "history", "music"]
    turns = re.findall(r"^(\w+)(?: researcher)? +read +(\d+) tokens, +(\d+) from the cache", shown, re.MULTILINE)
    assert [name for name, *_ in turns] == ["lead", "food", "history", "music", "writer"]
    (_, lead, _), (_, first, _), *_, (_, whole, found) = turns
    for _, _, cached in turns[1:]:
        assert int(cached) >= int(lead)
    # The writer finds the lead's part and the first researcher's, which stand where they were written.
    assert int(first) <= int(found) < int(whole) - 60


def test_an_app_that_knows_nothing_of_descant(url: str, tmp_path: Path) -> None:
    shown = run(example("plain_langgraph"), "--server", url, folder=tmp_path)
    assert re.findall(r"^(plan|act|reflect): ", shown, re.MULTILINE) == ["plan", "act", "reflect"]
    counts = re.search(
        r"The agents read (\d+) tokens\. (\d+) came from the cache, (\d+) of these across agents\.", shown
    )
    assert counts
    prompt, cached, crossed = map(int, counts.groups())
    assert cached > 0.6 * prompt, "of three agents, two find the document"
    assert crossed > 0.95 * cached


def test_the_blocks_of_the_document(url: str, tmp_path: Path) -> None:
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "agents.md").read_text(), re.DOTALL)
    assert len(blocks) == 6
    script = tmp_path / "document.py"
    script.write_text("\n\n".join(blocks).replace("http://127.0.0.1:30000", url))
    shown = run(script, folder=tmp_path)
    assert re.search(r"^planner \d+ \d+ 0\nactor \d+ (\d+) \1$", shown, re.MULTILINE), "sharing, token by token"
    assert "92,391 km2 | area failed: " in shown
    assert re.search(r"^(None|.+) (answered|limit of 2 steps) \[.*\]$", shown, re.MULTILINE)
    assert re.search(r"planner: Thought:.*\nactor: Answer:", shown, re.DOTALL)
    assert re.search(r"May I say .+\?\nTrue$", shown, re.MULTILINE)
