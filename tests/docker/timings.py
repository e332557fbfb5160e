"""How long the long steps took, for the summary: whether CI can afford them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

LINES: list[str] = []


@contextmanager
def timed(what: str) -> Iterator[None]:
    start = time.monotonic()
    try:
        yield
    finally:
        LINES.append(f"{time.monotonic() - start:7.1f} s  {what}")


def note(what: str) -> None:
    LINES.append(f"{'':9}  {what}")
