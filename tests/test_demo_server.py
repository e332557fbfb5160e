"""`descant serve --demo`: what it stands for."""

from __future__ import annotations

from pathlib import Path

import pytest
from rich.console import Console

from descant.agents.shipped import shipped_adapters
from descant.runtime.errors import DescantError
from descant.workflows import demo_server
from descant.workflows.demo_server import demo_arguments


def test_it_is_the_demos_model_with_its_trained_adapters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo_server, "demo_checkpoint", lambda _: Path("made"))
    line = demo_arguments(["--demo", "--port", "1", "--max-total-tokens", "99"], Console())
    adapters = shipped_adapters()
    assert adapters is not None
    at = line.index("--lora-paths")
    assert line[:2] == ["--model-path", "made"]
    assert line[at + 1 : at + 4] == [f"{role}={folder}" for role, folder in adapters.items()]
    assert line[-4:] == ["--port", "1", "--max-total-tokens", "99"]  # the last wins


@pytest.mark.parametrize("own", [["--model-path", "m"], ["m"], ["--lora-paths", "a=b"]])
def test_it_takes_no_other_model(own: list[str]) -> None:
    with pytest.raises(DescantError, match="its own model and adapters"):
        demo_arguments([*own, "--demo"], Console())
