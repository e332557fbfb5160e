"""A real browser in front of the real page, on the demo's model with its trained adapters."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx
import pytest
from engine import free_port
from playwright.sync_api import Browser, BrowserContext, sync_playwright

DESCANT = Path(sys.executable).with_name("descant")
START_S = 180


class Process:
    """`descant …` in a session of its own, its output in a file."""

    def __init__(self, log: Path, *words: object, **env: str) -> None:
        self.log = log
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                [DESCANT, *map(str, words)],
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, "COLUMNS": "200", **env},
                start_new_session=True,
            )

    def wait_for(self, pattern: str) -> str:
        """The first group of `pattern` in the log."""
        deadline = time.monotonic() + START_S
        while (found := re.search(pattern, self.log.read_text(errors="replace"))) is None:
            assert self._process.poll() is None, self.log.read_text()[-3000:]
            assert time.monotonic() < deadline, self.log.read_text()[-3000:]
            time.sleep(0.1)
        return found[1]

    def end(self, how: signal.Signals = signal.SIGTERM) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, how)
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(15)
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


class Model:
    """`descant serve --demo` on one port, which can go away and come back."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._port = folder, free_port()
        self.url = f"http://127.0.0.1:{self._port}"
        self._process: Process | None = None

    def start(self) -> None:
        self._process = Process(self._folder / "server.log", "serve", "--demo", "--port", self._port)
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline:
            with suppress(httpx.TransportError):
                if httpx.get(f"{self.url}/health", timeout=5, trust_env=False).status_code == 200:
                    return
            time.sleep(0.3)
        raise AssertionError((self._folder / "server.log").read_text(errors="replace")[-3000:])

    def kill(self) -> None:
        if self._process is not None:
            self._process.end(signal.SIGKILL)
            self._process = None


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Model]:
    model = Model(tmp_path_factory.mktemp("model"))
    model.start()
    yield model
    model.kill()


@contextmanager
def page_of(model: Model, folder: Path, *more: object) -> Iterator[str]:
    """`descant ui` with a store of its own: its address."""
    (folder / "cache").mkdir(exist_ok=True)
    words = ("ui", "--server", model.url, "--places", "--port", 0, *more)
    process = Process(folder / "ui.log", *words, DESCANT_CACHE=str(folder / "cache"))
    try:
        yield process.wait_for(r"Descant's page: (http://\S+)")
    finally:
        process.end()


@pytest.fixture
def address(model: Model, tmp_path: Path) -> Iterator[str]:
    with page_of(model, tmp_path) as url:
        yield url


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if chromium is None:
        pytest.fail("There is no Chromium to look at the page with: apt-get install chromium.")
    with sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])  # CI may be root
        yield found
        found.close()


@contextmanager
def user(browser: Browser, **options: object) -> Iterator[BrowserContext]:
    """Somebody with a browser of their own, whose console stays silent."""
    context = browser.new_context(**{"viewport": {"width": 1280, "height": 900}, **options})  # type: ignore[arg-type]
    said: list[str] = []
    context.on("console", lambda message: said.append(message.text) if message.type == "error" else None)
    context.on("weberror", lambda error: said.append(str(error.error)))
    yield context
    context.close()
    # What the page shows as a sentence, Chromium also writes of each failed request.
    assert [line for line in said if "Failed to load resource" not in line] == []
