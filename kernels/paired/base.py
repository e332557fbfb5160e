"""What an implementation of paired decode attention is: planned once a step, run once a layer.

One step of decode has B requests. Each asks with 2H query heads, its encoder's and its decoder's joined by
`heads.join_rows`, over the keys and values of its own tokens, which lie in a pool of slots shared by all requests
(ICaRus, section 3, algorithm 3). Pages are runs of slots: the slot table below serves every page size.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class PairedShape:
    """The attention that is served: joined query heads 2H, KV heads Hkv, head dim d, softmax scale, data type."""

    query_heads: int
    kv_heads: int
    head_dim: int
    scaling: float
    dtype: torch.dtype

    @property
    def group(self) -> int:
        """Joined query heads per KV head: 2G, G = H / Hkv."""
        return self.query_heads // self.kv_heads


class PairedDecode(ABC):
    """Decode attention over a slot table. An implementation's file says what it cannot serve.

    Raises:
        ValueError: on construction, where `shape` or `device` cannot be served; one sentence.
    """

    def __init__(self, shape: PairedShape, device: torch.device) -> None:
        if shape.query_heads % shape.kv_heads:
            raise ValueError(f"{shape.query_heads} query heads cannot be grouped over {shape.kv_heads} KV heads.")
        self.shape = shape
        self.device = device

    @abstractmethod
    def plan(self, slot_starts: torch.Tensor, slots: torch.Tensor) -> None:
        """Take the step's slot table, for every layer's `run` until the next plan.

        Args:
            slot_starts: [B + 1] int32; request b reads slots[slot_starts[b] : slot_starts[b + 1]], at least one.
            slots: [total] int32 or int64, indices into the pool in token order.
        """

    @abstractmethod
    def run(self, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        """[B, 2H, d] -> [B, 2H, d].

        Args:
            queries: [B, 2H, d], the shape's dtype, contiguous.
            keys, values: [pool, Hkv, d], one layer's pool; the shape's dtype.
        """
