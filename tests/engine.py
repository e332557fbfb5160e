"""A real SGLang server in a process of its own, and what the tests ask of it."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import tiny

START_SECONDS = 180
ANSWER_SECONDS = 120


def free_port() -> int:
    """A loopback TCP port that nothing listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _flags(args: Mapping[str, Any]) -> Iterator[str]:
    for name, value in args.items():
        flag = "--" + name.replace("_", "-")
        if value is True:
            yield flag
        elif isinstance(value, Mapping):
            yield from (flag, *(f"{key}={item}" for key, item in value.items()))
        elif isinstance(value, list | tuple):
            yield from (flag, *map(str, value))
        else:
            yield from (flag, str(value))


class Server:
    """`sglang serve` on a free loopback port.

    Args:
        args: SGLang's options by their Python names; True gives a bare flag, a list or a dict several words.
        log: where its output goes.
        env: environment variables beyond this process's own.
        module: a module to run in place of the command, as `python -m` would.

    Raises:
        RuntimeError: the server ended, or was not ready in `START_SECONDS`; the message has the log's end.
    """

    def __init__(
        self, args: Mapping[str, Any], log: Path, env: Mapping[str, str] | None = None, module: str | None = None
    ) -> None:
        self.log = log
        self.url = f"http://127.0.0.1:{(port := free_port())}"
        sglang = [sys.executable, "-m", module] if module else [str(Path(sys.executable).with_name("sglang")), "serve"]
        with log.open("w") as output:
            self.process = subprocess.Popen(
                [*sglang, *_flags({**args, "port": port})],
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, "OMP_NUM_THREADS": "1", **(env or {})},  # a tiny model gains nothing from more
                start_new_session=True,
            )
        # The server closes a connection that was idle for 5 s: never reuse one that old.
        fresh = httpx.Limits(keepalive_expiry=2)
        self.http = httpx.Client(base_url=self.url, timeout=ANSWER_SECONDS, limits=fresh)
        try:
            self._wait_until_ready()
        except BaseException:
            self.stop()
            raise

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                raise RuntimeError(f"The server ended with {self.process.returncode} at start: {self.log_tail()}")
            try:
                if self.http.get("/health", timeout=5).status_code == 200:
                    return
            except httpx.TransportError:
                pass
            time.sleep(0.2)
        raise RuntimeError(f"The server was not ready in {START_SECONDS} s: {self.log_tail()}")

    def log_tail(self, lines: int = 60) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])

    def stop(self) -> None:
        """End the server and every process it started."""
        self.http.close()
        self.process.terminate()
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(timeout=10)
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)  # its own session, and so its workers too
        self.process.wait()

    def body(
        self,
        tokens: Sequence[int],
        adapter: str | None,
        *,
        new_tokens: int = 8,
        logprobs: bool = True,
        sampling: Mapping[str, Any] | None = None,
        **more: Any,
    ) -> dict[str, Any]:
        """A `/generate` request: greedy, past the end-of-sequence token, with output log-probabilities."""
        return {
            "input_ids": list(tokens),
            "lora_path": adapter,
            "return_logprob": logprobs,
            "sampling_params": {"temperature": 0, "max_new_tokens": new_tokens, "ignore_eos": True, **(sampling or {})},
            **more,
        }

    def generate(self, tokens: Sequence[int], adapter: str | None = None, **request: Any) -> Any:
        """Send `body(tokens, adapter, **request)` and return the answer: a dict, or a list of n."""
        answer = self.http.post("/generate", json=self.body(tokens, adapter, **request))
        assert answer.status_code == 200, f"{answer.status_code}: {answer.text}\n{self.log_tail()}"
        return answer.json()

    def stream(self, tokens: Sequence[int], adapter: str | None = None, **request: Any) -> Generator[dict[str, Any]]:
        """As `generate`, yielding each chunk as it comes; a chunk holds all output so far."""
        with self.http.stream("POST", "/generate", json=self.body(tokens, adapter, stream=True, **request)) as answer:
            assert answer.status_code == 200, answer.read()
            for line in answer.iter_lines():
                if line.startswith("data: ") and line != "data: [DONE]":
                    yield json.loads(line.removeprefix("data: "))

    def flush(self) -> None:
        """Empty the cache; fails if a request is still running, or holds slots, after 20 s.

        The scheduler refuses for a moment after each answer, and would sleep a second before it looks again.
        """
        deadline = time.monotonic() + 20
        while (answer := self.http.post("/flush_cache")).status_code != 200:
            assert time.monotonic() < deadline, answer.text
            time.sleep(0.02)

    def info(self) -> dict[str, Any]:
        return self.http.get("/server_info").raise_for_status().json()

    def load_adapter(self, name: str, path: Path) -> httpx.Response:
        return self.http.post("/load_lora_adapter", json={"lora_name": name, "lora_path": str(path)})

    def unload_adapter(self, name: str) -> httpx.Response:
        return self.http.post("/unload_lora_adapter", json={"lora_name": name})


def together(calls: Sequence[Callable[[], Any]]) -> list[Any]:
    """Run all `calls` at once, each in a thread, and return their results in order."""
    with ThreadPoolExecutor(max_workers=len(calls)) as threads:
        return [future.result() for future in [threads.submit(call) for call in calls]]


def idle(server: Server) -> bool:
    """Whether the server runs no request: it refuses to flush its cache while it does."""
    return server.http.post("/flush_cache").status_code == 200


@contextmanager
def aborting(server: Server, requests: int = 1) -> Iterator[None]:
    """The block ends long requests: asks for that, and the server is idle well before they would end by themselves."""

    def asked() -> int:
        return server.log.read_text(errors="replace").count("POST /abort_request")

    before = asked()
    yield
    deadline = time.monotonic() + 1.5
    while not (idle(server) and asked() == before + requests):
        assert time.monotonic() < deadline
        time.sleep(0.02)


class Pool:
    """At most one running server; `get` starts another only for other arguments."""

    def __init__(self) -> None:
        self.logs = Path()
        self._key: Any = None
        self._server: Server | None = None
        self._started = 0

    def get(
        self,
        checkpoint: tiny.Checkpoint,
        *,
        adapters: Mapping[str, Path] | None = None,
        env: Mapping[str, str] | None = None,
        module: str | None = None,
        **args: Any,
    ) -> Server:
        """The server of `checkpoint` in float32, with `adapters` (its own by default) and `args`; cache empty."""
        adapters = checkpoint.adapters if adapters is None else adapters
        every_arg = {
            "model_path": checkpoint.model,
            "dtype": "float32",
            "enable_lora": True,
            "lora_paths": adapters,
            "max_loras_per_batch": 4,
            "max_total_tokens": 8192,
            "page_size": 1,
            "constrained_json_disable_any_whitespace": True,  # random models would write spaces for ever
            "skip_server_warmup": True,
            "sleep_on_idle": True,
            "log_level": "info",
            **args,
        }
        key = (every_arg, dict(env or {}), module)
        if self._server is not None and key == self._key and self._server.process.poll() is None:
            self._server.flush()
            return self._server
        self.stop()
        self._started += 1
        self._server = Server(every_arg, self.logs / f"{self._started}.log", env, module)
        self._key = key
        return self._server

    def stop(self) -> None:
        if self._server is not None:
            self._server.stop()
            self._server = None
