"""What the turns of a run find in a cache that was empty before: one for all adapters or one for each, from the ids."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


class Estimate:
    """Counts, turn after turn, what is found in a pool that evicts nothing.

    A request finds the longest prefix of its prompt that an earlier request had processed, prompt or answer, but for
    the last token of the prompt, which is always computed. The last token of an answer was sampled and not processed.

    Args:
        shared: whether it finds any adapter's, as under `icarus`, or its own adapter's alone, as under `nonshared`
            (which `descant.workflows.replay` measures on a server).
    """

    def __init__(self, shared: bool) -> None:
        self._shared = shared
        self._processed: dict[str | None, list[Sequence[int]]] = {}

    def turn(self, ids: Sequence[int], turn: Mapping[str, Any]) -> int:
        """Cached tokens of the next turn.

        Args:
            ids: a trajectory that begins with the turn's prompt.
            turn: its `TurnRecord`.
        """
        prompt = ids[: turn["prompt_tokens"]]
        own = self._processed.setdefault(None if self._shared else turn["adapter"], [])
        cached = max((_common(prompt, sequence) for sequence in own), default=0)
        processed = [*prompt, *turn["output_ids"][:-1]]
        # One that goes on from another holds all that the other would be found for.
        own[:] = [sequence for sequence in own if _common(processed, sequence) < len(sequence)]
        own.append(processed)
        return min(cached, len(prompt) - 1)


def _common(one: Sequence[int], other: Sequence[int]) -> int:
    """Length of the longest common prefix."""
    if one[: len(other)] == other:
        return len(other)
    return next((n for n, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
