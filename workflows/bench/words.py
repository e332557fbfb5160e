"""How figures are put into sentences."""

from __future__ import annotations


def counted(count: int, thing: str) -> str:
    """ "1 agent", "2 agents"."""
    return f"{count:,} {thing}" if count == 1 else f"{count:,} {thing}s"
