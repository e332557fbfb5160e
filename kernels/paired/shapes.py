"""Attention shapes of models that are served: what is compiled ahead of time, tested on hardware and measured."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from descant.kernels.paired.base import PairedShape


@dataclass(frozen=True)
class Model:
    """Query heads H, KV heads Hkv and head dim d of a model's attention, from its published config."""

    name: str
    heads: int
    kv_heads: int
    head_dim: int

    def joined(self, dtype: torch.dtype) -> PairedShape:
        """Encoder and decoder queries in one call: 2H heads."""
        return self._shape(2 * self.heads, dtype)

    def single(self, dtype: torch.dtype) -> PairedShape:
        """One of the two alone: H heads."""
        return self._shape(self.heads, dtype)

    def _shape(self, heads: int, dtype: torch.dtype) -> PairedShape:
        return PairedShape(heads, self.kv_heads, self.head_dim, self.head_dim**-0.5, dtype)


MODELS = (
    Model("Llama-3.1-8B", 32, 8, 128),
    Model("Qwen3-8B", 32, 8, 128),
    Model("Qwen3-14B", 40, 8, 128),
    Model("Llama-3.2-1B", 32, 8, 64),
    Model("Llama-3.1-405B", 128, 8, 128),
    Model("Gemma-2B", 8, 1, 256),
    Model("Phi-2", 32, 32, 80),
)
DTYPES = (torch.bfloat16, torch.float16, torch.float32)
