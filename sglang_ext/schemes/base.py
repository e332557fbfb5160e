"""What a KV-sharing scheme is: the four questions on which schemes differ.

A scheme is one small file in this folder. It imports neither torch nor SGLang, so that tools may ask it questions
without an engine.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

from descant.sglang_ext.rows import RowBatch, RowPlan


class Scheme(ABC):
    """A rule for who writes the KV cache and who reads it.

    name: the value of --kv-sharing.
    summary: one line for help texts and tables.
    shares_namespace: whether all adapters and the base model use one radix namespace.
    pairs_rows: whether `plan` may return a plan (the engine then needs the paired forward).
    warning: what a user must know before serving with it, or None.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    shares_namespace: ClassVar[bool]
    pairs_rows: ClassVar[bool] = False
    warning: ClassVar[str | None] = None

    @abstractmethod
    def plan(self, batch: RowBatch) -> RowPlan | None:
        """The rows of one forward, or None for upstream's: one row per token, under the request's adapter."""

    def dropped_modules(self, modules: set[str]) -> set[str]:
        """Of an adapter's PEFT module names, those whose update this scheme could only serve by ignoring it."""
        return set()

    def refuse_adapter(self, name: str, modules: set[str]) -> str | None:
        """One sentence that says why the adapter `name`, which updates `modules`, cannot be served; None if it can."""
        return None
