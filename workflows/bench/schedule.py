"""What a load is made of: workflows that arrive, each a list of turns on one growing trajectory.

A schedule holds counts alone, no tokens, so that it is the same for every KV-sharing scheme, on a server and simulated.
"""

from __future__ import annotations

from dataclasses import dataclass

from descant.runtime.errors import DescantError


@dataclass(frozen=True)
class Turn:
    """One agent's turn.

    agent: which of the agents speaks, from 0.
    prefill: tokens that stand new before it, such as a tool's result; what was there before is the trajectory.
    decode: tokens that it generates, exactly.
    """

    agent: int
    prefill: int
    decode: int


@dataclass(frozen=True)
class Workflow:
    """Turns one after the other: each begins when the one before it has ended, on all its tokens.

    arrival: seconds after the load began.
    """

    number: int
    arrival: float
    turns: tuple[Turn, ...]

    @property
    def tokens(self) -> int:
        """The trajectory at its end."""
        return sum(turn.prefill + turn.decode for turn in self.turns)

    def check(self) -> None:
        """Raise DescantError unless each turn has something to read and to generate."""
        if any(turn.decode < 1 or turn.prefill < 0 for turn in self.turns) or self.turns[0].prefill < 1:
            raise DescantError(
                f"Workflow {self.number} has a turn with nothing to read or to generate: "
                "give its first turn a prompt and each turn an output of a token at least."
            )
