"""Waiting for a process that comes up."""

from __future__ import annotations

import socket
import subprocess
import time
from pathlib import Path

import httpx


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port: int = listening.getsockname()[1]
        return port


def until_up(url: str, process: subprocess.Popen[bytes], log: Path, seconds: float) -> None:
    """Until `url` answers 200; what the process has written is in the message if it does not."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        assert process.poll() is None, f"it ended with {process.returncode}:\n{log.read_text()[-4000:]}"
        try:
            if httpx.get(url, timeout=10).status_code == 200:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.5)
    raise AssertionError(f"{url} did not answer within {seconds} s:\n{log.read_text()[-4000:]}")
