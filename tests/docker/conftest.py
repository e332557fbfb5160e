"""One store of images for all of these tests: removed at the end, unless DESCANT_DOCKER_WORK names a folder to keep."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import timings
from buildah import Store
from paths import DOCKER, missing


def pytest_configure() -> None:
    """What is missing is said at once, not after minutes of building."""
    if lacking := missing():
        raise pytest.UsageError(f"make test-docker needs programs that are not here: apt-get install {lacking}.")
    if os.geteuid() != 0:
        raise pytest.UsageError("make test-docker builds images in a chroot, which only root may: run it with sudo.")


@pytest.fixture(scope="session")
def work() -> Iterator[Path]:
    if kept := os.environ.get("DESCANT_DOCKER_WORK"):
        Path(kept).mkdir(parents=True, exist_ok=True)
        yield Path(kept).resolve()
        return
    folder = Path(tempfile.mkdtemp(prefix="descant-docker-", dir=os.environ.get("TMPDIR", "/var/tmp")))
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(scope="session")
def store(work: Path) -> Iterator[Store]:
    made = Store(work)
    yield made
    if "DESCANT_DOCKER_WORK" not in os.environ:
        made("rmi", "--all", "--force")


@pytest.fixture(scope="session")
def ui_image(store: Store) -> str:
    return store.build(DOCKER / "ui.Dockerfile", "descant-ui")


@pytest.fixture(scope="session")
def server_image(store: Store) -> str:
    return store.build(DOCKER / "server.Dockerfile", "descant-server")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    terminalreporter.section("what it took")
    for line in timings.LINES:
        terminalreporter.write_line(line)
