"""What a run's states add to its events: which part of the trajectory is whose, and what no sharing would have cost."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from descant.workflows import events
from descant.workflows.estimate import Estimate
from descant.workflows.limits import OPENING

STEP = "step"
OBSERVE = "observe"  # the node of the ready-made graphs in which a tool answers
HIDDEN = frozenset({"output_ids", "sampling", "event", "node"})

Event = dict[str, Any]


class Told:
    """Follows the states of one run, and tells each step that has become part of it."""

    def __init__(self) -> None:
        self._steps = 0
        self._together, self._alone = Estimate(shared=True), Estimate(shared=False)

    def steps(self, state: Mapping[str, Any]) -> Iterator[Event]:
        """An event for each step that `state` has and the state before had not.

        Each: node, agent, start and tokens, its place in the trajectory; together and alone, the cached tokens of each
        of its turns if the cache had been empty before the run, with one for all and with one an adapter.
        A start before the last end: the trajectory was cut there.
        """
        ids = state.get("ids", ())
        new = state.get("steps", ())[self._steps :]
        start = len(ids) - sum(step["tokens"] for step in new)
        for step in new:
            yield {
                "event": STEP,
                "node": step["node"],
                "agent": step["agent"],
                "start": start,
                "tokens": step["tokens"],
                "together": [self._together.turn(ids, turn) for turn in step["turns"]],
                "alone": [self._alone.turn(ids, turn) for turn in step["turns"]],
            }
            start += step["tokens"]
        self._steps += len(new)


def retold(
    states: Iterable[Mapping[str, Any]], cues: Mapping[str, str], texts: Mapping[tuple[int, ...], str]
) -> Iterator[Event]:
    """The events of a run, from its checkpoints' states in order.

    Args:
        cues: of each node's agent.
        texts: the text of steps, by their ids; of a step that is not there, what its agent said is told alone.
    """
    told, steps, observations = Told(), 0, 0
    for state in states:
        for event in list(told.steps(state)):
            step = state["steps"][steps]
            steps += 1
            text = texts.get(tuple(_ids(state, event)))
            if step["agent"] is not None:
                yield from _spoken(step, cues.get(step["node"], ""), text)
            elif step["node"] != OPENING:
                if step["node"] == OBSERVE:
                    yield {
                        "event": events.OBSERVATION,
                        "seconds": step["seconds"],
                        **state["observations"][observations],
                    }
                    observations += 1
                if text is not None:
                    yield {"event": events.WRITTEN, "node": step["node"], "text": text}
            yield event


def pieces(states: Iterable[Mapping[str, Any]]) -> list[tuple[int, ...]]:
    """The ids of each step but the opening, for `retold`'s texts."""
    told = Told()
    return [tuple(_ids(state, event)) for state in states for event in told.steps(state) if event["node"] != OPENING]


def _ids(state: Mapping[str, Any], event: Event) -> Sequence[int]:
    return state["ids"][event["start"] : event["start"] + event["tokens"]]


def _spoken(step: Mapping[str, Any], cue: str, text: str | None) -> Iterator[Event]:
    node, agent = step["node"], step["agent"]
    known = text is not None and text.startswith(cue)
    yield {"event": events.TURN, "node": node, "agent": agent, "cue": cue if known else ""}
    said = text[len(cue) :] if text is not None and known else "".join(turn["text"] for turn in step["turns"])
    yield {"event": events.TEXT, "node": node, "agent": agent, "text": said}
    for turn in step["turns"]:
        yield turn_end(node, turn)


def turn_end(node: str, turn: Mapping[str, Any]) -> Event:
    """What a request cost, without its ids and sampling."""
    return {"event": events.TURN_END, "node": node, **{k: v for k, v in turn.items() if k not in HIDDEN}}
