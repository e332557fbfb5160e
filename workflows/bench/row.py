"""One turn of a load as it went, on a server or simulated."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Row:
    """One turn as it went. Times are seconds after the load began.

    due: when it could begin: its workflow's arrival, or the end of the turn before. sent: when it was sent, later only
    by what this process was late. first, end: first and last token.
    prompt: tokens of the prompt. cached: those of them read from the cache. cross_agent: those of these that another
    agent had written. output: tokens generated. queued: seconds in which it waited for the
    scheduler; None if the server does not say.
    """

    workflow: int
    turn: int
    agent: int
    due: float
    sent: float
    first: float
    end: float
    prompt: int
    cached: int
    cross_agent: int
    output: int
    queued: float | None = None
