"""What an agent is: a name, the adapter that answers for it, its cue, and how it samples."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Agent:
    """One voice of a graph.

    name: what transcripts and records call it.
    adapter: the name under which the server has its LoRA adapter; None is the base model.
    cue: text that is appended to the trajectory when its turn begins, "\\nThought:" for instance. The adapter carries
        the role, and the cue says whose turn it is: no agent has a prompt of its own in front of what all share.
    sampling: defaults for what it generates, by the names of sglang's `gen` run options (temperature, max_new_tokens,
        top_p, stop, …).
    """

    name: str
    adapter: str | None = None
    cue: str = ""
    sampling: Mapping[str, Any] = field(default_factory=dict)
