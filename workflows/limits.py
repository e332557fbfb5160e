"""When a run is over, whatever its agents say."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

OPENING = "opening"  # the node with which each run begins


@dataclass(frozen=True)
class Limits:
    """Of one run; None is no limit. Looked at before each step, so a step may end beyond them.

    turns: requests to the model. tokens: generated ones. seconds: in steps, so that time between a crash and its
    resumption is not counted; a turn in progress is ended when they are over, and what had come of its step is left
    out. context: ids of the trajectory; the model's own
    context ends a run in any case.
    """

    turns: int | None = 100
    tokens: int | None = None
    seconds: float | None = None
    context: int | None = None

    def reached(self, state: Mapping[str, Any]) -> str | None:
        """The reason why the run should end now, or None."""
        steps = run(state)
        turns = [turn for step in steps for turn in step["turns"]]
        for limit, spent, of in (
            (self.turns, len(turns), "turns"),
            (self.tokens, sum(turn["output_tokens"] for turn in turns), "generated tokens"),
            (self.seconds, sum(step["seconds"] for step in steps), "seconds"),
            (self.context, len(state.get("ids", ())), "tokens of context"),
        ):
            if limit is not None and spent >= limit:
                return reason(limit, of)
        return None

    def left(self, state: Mapping[str, Any]) -> float | None:
        """Seconds that remain."""
        return None if self.seconds is None else self.seconds - sum(step["seconds"] for step in run(state))


def reason(limit: float, of: str) -> str:
    """How a limit is named as the end of a run."""
    return f"limit of {limit:g} {of}"


def run(state: Mapping[str, Any]) -> list[Any]:
    """The steps of the run that goes on, without those of earlier runs on the same thread."""
    steps = state.get("steps", [])
    opened = max((number for number, step in enumerate(steps) if step["node"] == OPENING), default=0)
    return list(steps[opened:])
