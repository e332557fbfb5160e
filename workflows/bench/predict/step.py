"""What one forward of a batch has to do, in counts that a machine can be asked the time of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Step:
    """One forward.

    prefill: whether it extends prompts; a decode step otherwise.
    rows: tokens that go through the layers, encoder and decoder rows together.
    written: rows among them that write their K and V.
    adapted: rows among them that go through a LoRA adapter.
    pairs: (query, key) pairs of attention, over all rows.
    kv: tokens whose K and V are read, each request's once.
    logits: rows that go through the head.
    adapters: different adapters that `adapted` needs.
    """

    prefill: bool
    rows: int
    written: int
    adapted: int
    pairs: int
    kv: int
    logits: int
    adapters: int


class Machine(Protocol):
    """Where a model runs under a scheme."""

    @property
    def turn(self) -> float:
        """Seconds that a turn takes outside of all steps, before it waits to be scheduled."""

    def seconds(self, step: Step) -> float:
        """How long the step takes."""
