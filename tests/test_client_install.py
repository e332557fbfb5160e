"""`descant[client]` in an environment of its own: no torch, and graphs run on a server elsewhere."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from deployments import on
from engine import Server

from descant.runtime.extras import SGLANG

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("agents", "descant", "kernels", "runtime", "sglang_ext", "workflows")
FILES = ("pyproject.toml", "README.md", "LICENSE")


def run(*words: object, status: int = 0, **env: str) -> str:
    done = subprocess.run(
        list(map(str, words)), capture_output=True, text=True, timeout=600, env={**os.environ, **env}, cwd="/"
    )
    assert done.returncode == status, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the programs of a fresh environment."""
    folder = tmp_path_factory.mktemp("client")
    source = folder / "source"
    for name in FOLDERS:
        shutil.copytree(ROOT / name, source / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    for name in FILES:
        shutil.copy(ROOT / name, source / name)
    run(sys.executable, "-m", "venv", folder / "venv")
    programs = folder / "venv/bin"
    run(programs / "pip", "install", "--quiet", f"{source}[client]")
    return programs


@pytest.mark.slow
@on("roomy")
def test_a_graph_runs_without_torch(server: Server, client: Path, tmp_path: Path) -> None:
    installed = run(client / "pip", "list")
    assert "torch" not in installed
    assert "fastapi" in installed
    ask = (client / "descant", "run", "react", "Which city is larger?", "--server", server.url, "--steps", 2)
    cache = {"DESCANT_CACHE": str(tmp_path)}
    wanted = "This needs sglang, which is not installed: pip install 'descant[server]'; for graphs of agents alone, "
    assert f"{wanted}pip install --no-deps sglang=={SGLANG}." in run(*ask, status=1, COLUMNS="400", **cache)
    run(client / "pip", "install", "--quiet", "--no-deps", f"sglang=={SGLANG}")
    assert "Totals" in run(*ask, **cache)
    for words in (("serve", "--demo"), ("doctor",), ("ui",)):
        said = run(client / "descant", *words, status=1, COLUMNS="400", **cache)
        assert "needs torch, which is not installed: pip install 'descant[server]'" in said, words
    check = "import descant, sys; descant.gen, descant.react; print('torch' in sys.modules)"
    assert run(client / "python", "-c", check).strip() == "False"
