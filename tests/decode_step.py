"""One decode step, as the tests of the paired kernels hand it around. Needs PyTorch only."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Step:
    """Its tensors, in the order of `descant.kernels.paired.triton.decode`'s arguments.

    queries [B, H, d]; keys, values: a pool, [slots, Hkv, d]; slot_starts [B + 1]: where each request's part of `slots`
    [tokens] begins, and the end.
    """

    queries: torch.Tensor
    keys: torch.Tensor
    values: torch.Tensor
    slot_starts: torch.Tensor
    slots: torch.Tensor
