"""Paired decode on the CPU, by the attention operator of kernels/cpu/: compiled, or else plain torch."""

from __future__ import annotations

import torch

from descant.kernels.cpu import operators
from descant.kernels.paired.base import PairedDecode, PairedShape


class TorchCpuDecode(PairedDecode):
    """Any group, head dim and page size. float32 and bfloat16; without a compiler whatever torch's SDPA takes."""

    def __init__(self, shape: PairedShape, device: torch.device) -> None:
        super().__init__(shape, device)
        if device.type != "cpu":
            raise ValueError(f"torch_cpu attends on the CPU, not on {device.type}; choose triton or flashinfer.")
        if operators().COMPILED and shape.dtype not in (torch.float32, torch.bfloat16):
            raise ValueError(f"torch_cpu attends in float32 and bfloat16, not in {shape.dtype}; choose reference.")

    def plan(self, slot_starts: torch.Tensor, slots: torch.Tensor) -> None:
        self.lengths = slot_starts.diff().long()
        self.requests = torch.arange(len(self.lengths))
        self.ones = torch.ones_like(self.lengths)
        self.tables = torch.zeros(len(self.lengths), int(self.lengths.max()), dtype=torch.int32)
        self.tables[torch.arange(self.tables.shape[1]) < self.lengths[:, None]] = slots[: int(slot_starts[-1])].int()

    def run(self, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        return operators().attention(
            *(queries, None, None, None, keys, values, self.tables, self.requests, self.lengths, self.ones),
            *(1, self.shape.scaling),
        )
