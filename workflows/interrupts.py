"""Questions that a graph waits with, LangGraph's `interrupt()`, and answers to them from outside Python."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from typing import Any

from langgraph.checkpoint.base import CheckpointTuple
from langgraph.checkpoint.serde.types import ERROR, INTERRUPT, RESUME
from langgraph.types import Interrupt

from descant.runtime.errors import DescantError


def pending(found: CheckpointTuple) -> list[Interrupt]:
    """What the nodes ask that a run stopped in; those that were answered and are done ask no more."""
    asked: dict[str, list[Interrupt]] = {}
    done = set()
    for task, channel, value in found.pending_writes or ():
        if channel == INTERRUPT:
            asked[task] = list(value)
        elif channel not in (ERROR, RESUME):
            done.add(task)
    return [one for task, questions in asked.items() if task not in done for one in questions]


def answers(thread: str, asked: Sequence[Interrupt], text: str) -> dict[str, Any]:
    """What `Command(resume=…)` takes: answers by the questions' ids.

    Args:
        text: JSON, or else the answer as it stands; where several ask, a JSON object by id.

    Raises:
        DescantError: nobody asks, or several do and `text` does not say which it answers.
    """
    try:
        value = json.loads(text)
    except ValueError:
        value = text
    if not asked:
        raise DescantError(f"The run {thread} waits for no answer: resume it without --answer.")
    if len(asked) == 1:
        return {asked[0].id: value}
    if not isinstance(value, dict) or not value or not value.keys() <= {one.id for one in asked}:
        raise DescantError(f"The run {thread} waits for {len(asked)} answers: give them by id, {_example(asked)}.")
    return value


def how_to_answer(thread: str, asked: Sequence[Interrupt]) -> str:
    """The command that goes on with the run."""
    return f"descant run --resume {thread} --answer {'TEXT' if len(asked) == 1 else _example(asked)}"


def _example(asked: Sequence[Interrupt]) -> str:
    return shlex.quote(json.dumps({one.id: "TEXT" for one in asked}))
