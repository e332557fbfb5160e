"""What a run of a graph keeps between its nodes, and so in each checkpoint."""

from __future__ import annotations

import operator
from typing import Annotated, Any, TypedDict, get_type_hints

from descant.runtime.errors import DescantError
from descant.runtime.turn import Turn

# Ids to append, or "cut to so many ids, then append": JSON, so that any checkpointer can hold it.
Ids = list[int] | dict[str, Any]


def cut(keep: int, ids: list[int]) -> dict[str, Any]:
    """An update of `ids` that forgets all but the first `keep`, and goes on with `ids`."""
    return {"keep": keep, "append": ids}


def extend(ids: list[int], new: Ids) -> list[int]:
    """The trajectory with `new` at its end. Of parallel steps each gives its own part."""
    return ids[: new["keep"]] + new["append"] if isinstance(new, dict) else ids + new


def first(old: str | None, new: str | None) -> str | None:
    """Why a run ended: the first reason stands, until None clears it for the next run on the thread."""
    return new if old is None or new is None else old


class TurnRecord(TypedDict):
    """One request to the model, as JSON: see `descant.runtime.turn.Turn`. Times in seconds."""

    agent: str | None
    adapter: str | None
    sampling: dict[str, Any]
    text: str
    output_ids: list[int]
    prompt_tokens: int
    cached_tokens: int
    cross_agent: int
    output_tokens: int
    ttft: float
    latency: float


def record(turn: Turn, agent: str | None) -> TurnRecord:
    """What is kept of a turn of the agent with this name."""
    return TurnRecord(
        agent=agent,
        adapter=turn.agent,
        sampling={name: list(value) if isinstance(value, tuple) else value for name, value in turn.sampling.items()},
        text=turn.text,
        output_ids=list(turn.output_ids),
        prompt_tokens=turn.prompt_tokens,
        cached_tokens=turn.cached_tokens,
        cross_agent=turn.cross_agent,
        output_tokens=len(turn.output_ids),
        ttft=turn.ttft,
        latency=turn.latency,
    )


class StepRecord(TypedDict):
    """One node's part of the trajectory.

    agent: who wrote it; None for tools and other text of ours.
    tokens: how many ids it added. Records and ids stand in the same order.
    seconds: how long the node took.
    """

    node: str
    agent: str | None
    tokens: int
    seconds: float
    turns: list[TurnRecord]


class Trajectory(TypedDict, total=False):
    """Every graph's state has these keys beside its own.

    ids: the token ids that all agents read and extend.
    steps: who wrote them, and what each turn cost.
    ended: why the run ended, if it did so before its graph was through, or by a node's wish.
    """

    ids: Annotated[list[int], extend]
    steps: Annotated[list[StepRecord], operator.add]
    ended: Annotated[str | None, first]


RECORDED = frozenset({"ids", "steps"})  # what steps write of themselves; programs cannot set it


def with_trajectory(state: type | None) -> type:
    """The TypedDict `state` with the keys of `Trajectory` added.

    Raises:
        DescantError: it has one of them, as something else.
    """
    own = get_type_hints(state, include_extras=True) if state is not None else {}
    added = get_type_hints(Trajectory, include_extras=True)
    if taken := [key for key in added if own.get(key, added[key]) != added[key]]:
        raise DescantError(f"The state's {', '.join(taken)} would hide what every graph's state has: rename it.")
    keys = {**own, **added}
    return TypedDict(state.__name__ if state is not None else "State", keys, total=False)  # type: ignore[operator]
