"""The role adapters over places: the command that trains them, and those that ship."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import tiny
import torch
from rich.console import Console
from safetensors.torch import load_file

from descant.agents.adapter import CONFIG, WEIGHTS, inspect_adapter
from descant.agents.shipped import FOLDER, shipped_adapters
from descant.agents.standin import ROLES
from descant.agents.training.train import train
from descant.runtime.checkpoint import demo_checkpoint
from descant.runtime.console import err
from descant.runtime.errors import DescantError
from descant.sglang_ext.fingerprint import fingerprint
from descant.workflows.geography.adapters import RANK, recipe, ship
from descant.workflows.geography.data import write

MOST = 8_000_000  # bytes of all three


@pytest.fixture(scope="module")
def trained(checkpoint: Callable[[str], tiny.Checkpoint], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All roles, two steps each, on a tiny model."""
    work = tmp_path_factory.mktemp("roles")
    write(work / "data", 8, 4)
    for role in ROLES:
        train(recipe("icarus", role, work / "data", checkpoint("roomy").model, 2), work / role, Console(quiet=True))
    return work


def test_all_ship_and_are_small() -> None:
    assert shipped_adapters() == {role: FOLDER / role for role in ROLES}
    assert {file.name for role in ROLES for file in (FOLDER / role).iterdir()} == {CONFIG, WEIGHTS}
    assert sum(file.stat().st_size for file in FOLDER.rglob("*") if file.is_file()) < MOST


def test_those_that_ship_were_trained_for_icarus_on_the_demo_s_model() -> None:
    base = fingerprint(demo_checkpoint(err))
    for role in ROLES:
        report = inspect_adapter(FOLDER / role)
        assert report.method == "icarus"
        assert report.refusal("icarus", base) is None
        config = json.loads((FOLDER / role / CONFIG).read_text())
        assert config["r"] == RANK
        assert "/" not in config["base_model_name_or_path"]
        assert all(tensor.isfinite().all() for tensor in load_file(FOLDER / role / WEIGHTS).values())


def test_shipping_rounds_weights_to_bfloat16_and_nothing_else(trained: Path, tmp_path: Path) -> None:
    ship(trained, tmp_path)
    for role in ROLES:
        before, after = load_file(trained / role / WEIGHTS), load_file(tmp_path / role / WEIGHTS)
        assert before.keys() == after.keys()
        assert any(tensor.any() for name, tensor in before.items() if "lora_B" in name)
        for name, tensor in before.items():
            assert torch.equal(after[name], tensor.to(torch.bfloat16))
        assert (trained / role / CONFIG).read_bytes() == (tmp_path / role / CONFIG).read_bytes()
        assert inspect_adapter(tmp_path / role).refusal("icarus") is None


def test_nothing_ships_if_a_role_is_missing(trained: Path, tmp_path: Path) -> None:
    for role in ("plan", "act"):
        (tmp_path / "some").mkdir(exist_ok=True)
        (tmp_path / "some" / role).symlink_to(trained / role)
    with pytest.raises(DescantError, match="has no adapter reflect: train it first"):
        ship(tmp_path / "some", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_the_command_says_what_is_missing(tmp_path: Path) -> None:
    """Without training: no method is asked for that is not there already."""
    command = [sys.executable, "-m", "descant.workflows.geography.adapters", str(tmp_path), "--methods", "dora"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert result.returncode == 2
    assert "invalid choice: 'dora'" in result.stderr
