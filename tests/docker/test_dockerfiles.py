"""The Dockerfiles and lock files, as they are written."""

from __future__ import annotations

import re
import subprocess
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from paths import DOCKER, ROOT, tool

FILES = sorted(DOCKER.glob("*.Dockerfile"))


@pytest.fixture(params=FILES, ids=lambda file: file.name)
def dockerfile(request: pytest.FixtureRequest) -> Path:
    file: Path = request.param
    return file


def test_both_are_there() -> None:
    assert [file.name for file in FILES] == ["server.Dockerfile", "ui.Dockerfile"]


def test_hadolint_finds_nothing(dockerfile: Path) -> None:
    done = subprocess.run(
        [tool("hadolint"), "--no-color", str(dockerfile)],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_hadolint_finds_what_is_wrong(tmp_path: Path) -> None:
    wrong = tmp_path / "Dockerfile"
    wrong.write_text("FROM debian\nRUN cd /tmp && sudo ls\n")
    found = subprocess.run([tool("hadolint"), str(wrong)], capture_output=True, text=True)
    assert {"DL3006", "DL3004"} <= set(re.findall(r"DL\d+", found.stdout))


def test_base_has_a_tag(dockerfile: Path) -> None:
    text = dockerfile.read_text()
    bases = [base for base in re.findall(r"^(?:ARG BASE=|FROM )(\S+)", text, re.MULTILINE) if ":" in base]
    assert set(bases) == {"debian:bookworm-slim"}


def test_no_secret_is_asked_for(dockerfile: Path) -> None:
    assert not re.search(
        r"key|token|password|secret", dockerfile.read_text().replace("asks for no key", ""), re.IGNORECASE
    )


@pytest.mark.parametrize(("lock", "extras"), [("server", ("server", "demo")), ("ui", ("client",))])
def test_lock_has_what_the_package_asks_for(lock: str, extras: tuple[str, ...]) -> None:
    lines = [line for line in (DOCKER / f"{lock}.lock").read_text().splitlines() if not line.startswith("#")]
    assert lines == sorted(lines, key=lambda line: line.split("=="))
    locked = dict(line.split("==") for line in lines)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = project["dependencies"] + [need for extra in extras for need in project["optional-dependencies"][extra]]
    for need in map(Requirement, wanted):
        if need.name != "descant":
            assert locked.get(need.name.lower(), "") in need.specifier, f"{need} in {lock}.lock: renew it"
    assert locked["sglang"] == "0.5.23"


def test_the_page_has_no_torch() -> None:
    assert not re.search(r"^(torch|nvidia|transformers|triton)", (DOCKER / "ui.lock").read_text(), re.MULTILINE)
