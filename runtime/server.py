"""A server that lives as long as a `with` block."""

from __future__ import annotations

import logging
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType

import httpx

from descant.runtime.errors import DescantError
from descant.runtime.extras import require
from descant.runtime.sglang_command import SGLANG_SERVE
from descant.runtime.turn import InterruptedTurn, Unreachable

logger = logging.getLogger(__name__)

PORT_TRIES = 3
STOP_GRACE_S = 5.0
# SGLang ends 6.5 s after a worker died, having looked at what is left; its clients are cut off before that.
DYING_S = 15.0


class ServerError(DescantError):
    """The server did not start, or died."""


class _PortTaken(Exception):
    pass


class Server:
    """`sglang serve` on a free loopback port; started on entry, ended with all its processes on exit.

    Entry returns once /health answers 200. Between the two stands `descant.runtime.guard`, so nothing is left behind
    even if this process is killed with SIGKILL.

    Args:
        model: folder of the base model's checkpoint.
        adapters: folder of each adapter, by the name that requests give it.
        kv_sharing: the sharing scheme.
        options: more options of `sglang serve`, as on its command line.
        log: file that takes the server's output; if None a temporary one, kept only of a server that failed a client or
            by itself.
        ready_timeout: seconds until /health must answer.

    Raises:
        NotInstalled: on entry, if SGLang's server is not installed.
        ServerError: on entry, if the server ends or is not ready in time; the message has the end of its log.
    """

    def __init__(
        self,
        model: str | os.PathLike[str],
        adapters: Mapping[str, str | os.PathLike[str]] | None = None,
        *,
        kv_sharing: str = "icarus",
        options: Sequence[str] = (),
        log: Path | None = None,
        ready_timeout: float = 300.0,
    ) -> None:
        self._arguments = ["--model-path", os.fspath(model), "--kv-sharing", kv_sharing]
        if adapters:
            self._arguments += ["--enable-lora", "--lora-paths", *(f"{n}={os.fspath(p)}" for n, p in adapters.items())]
        self._arguments += options
        self._own_log = log is None
        self.log = log or Path(tempfile.gettempdir()) / f"descant-server-{os.getpid()}-{id(self):x}.log"
        self._ready_timeout = ready_timeout
        self._process: subprocess.Popen[bytes] | None = None
        self._lost = False
        self.url = ""

    def __enter__(self) -> Server:
        require("sglang", "torch")
        for attempt in range(PORT_TRIES):
            try:
                self._start(_free_port())
                return self
            except _PortTaken as error:
                self._stop()
                if attempt == PORT_TRIES - 1:
                    self._remove_log()
                    raise ServerError(
                        f"No loopback port stayed free long enough in {PORT_TRIES} tries: start again."
                    ) from error
            except ServerError:
                self._stop()
                raise
            except BaseException:  # Ctrl-C, say: the server did not fail
                self._stop()
                self._remove_log()
                raise
        raise AssertionError("unreachable")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        ended = self._process is None or self._process.poll() is not None
        self._stop()
        if isinstance(error, ServerError):  # which names the log
            return
        if ended:
            logger.warning(f"The server had ended by itself; its log is {self.log}.")
        elif self._lost or _is_loss(error):  # whose sentence sends the reader to the log
            logger.warning(f"The server's log is {self.log}.")
        else:
            self._remove_log()

    @property
    def pid(self) -> int:
        """The process id of the guard, the root of all the server's processes."""
        assert self._process is not None
        return self._process.pid

    def check(self, seen: BaseException | None = None) -> None:
        """Raise ServerError if the server has died.

        Args:
            seen: what a client met. If that is the loss of its connection, the server gets DYING_S seconds to end.
        """
        self._lost = self._lost or _is_loss(seen)
        deadline = time.monotonic() + (DYING_S if _is_loss(seen) else 0)
        while self._process is not None and self._process.poll() is None:
            if time.monotonic() >= deadline:
                return
            time.sleep(0.1)
        raise ServerError(f"The server has ended; its log {self.log} ends with:\n{self._log_tail()}")

    def _start(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"
        command = [*SGLANG_SERVE, *self._arguments, "--host", "127.0.0.1", "--port", str(port)]
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "descant.runtime.guard", str(STOP_GRACE_S), *command],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # the terminal's Ctrl-C reaches us alone, and we stop it in order
            )
        deadline = time.monotonic() + self._ready_timeout
        with httpx.Client(base_url=self.url, trust_env=False, timeout=10.0) as client:
            while time.monotonic() < deadline:
                # First of all: whoever took the port might answer /health, and SGLang does not end by itself then.
                if "address already in use" in self._log_text().lower():
                    raise _PortTaken
                if (code := self._process.poll()) is not None:
                    raise ServerError(
                        f"The server ended with status {code} before it was ready; its log {self.log} ends with:\n"
                        f"{self._log_tail()}"
                    )
                try:
                    if client.get("/health").status_code == 200:
                        return
                except httpx.TransportError:
                    pass  # not listening yet
                time.sleep(0.5)
        raise ServerError(
            f"The server was not ready after {self._ready_timeout:.0f} s; its log {self.log} ends with:\n"
            f"{self._log_tail()}"
        )

    def _stop(self) -> None:
        if self._process is None:
            return
        assert self._process.stdin is not None
        self._process.stdin.close()  # the guard's sign to end everything
        self._process.wait()
        self._process = None

    def _remove_log(self) -> None:
        if self._own_log:
            self.log.unlink(missing_ok=True)

    def _log_tail(self, lines: int = 15) -> str:
        return "\n".join(self._log_text().splitlines()[-lines:])

    def _log_text(self) -> str:
        return self.log.read_text(errors="replace")


def _is_loss(error: BaseException | None) -> bool:
    # By its own type: a turn that timed out or was cancelled is an interrupted one, too, but by us.
    return isinstance(error, Unreachable) or type(error) is InterruptedTurn


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
