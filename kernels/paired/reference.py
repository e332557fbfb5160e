"""The definition of paired decode attention, in float32 and one request at a time. Slow, and on any device."""

from __future__ import annotations

import itertools

import torch

from descant.kernels.paired.base import PairedDecode


class ReferenceDecode(PairedDecode):
    """softmax(scaling * q k^T) v for each joined query head over its own KV head, computed in float32."""

    def plan(self, slot_starts: torch.Tensor, slots: torch.Tensor) -> None:
        starts = slot_starts.tolist()
        self.slots = [slots[first:last].long() for first, last in itertools.pairwise(starts)]

    def run(self, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        grouped = queries.float().view(-1, self.shape.kv_heads, self.shape.group, self.shape.head_dim)
        out = torch.empty_like(grouped)
        for request, slots in enumerate(self.slots):
            k, v = keys[slots].float(), values[slots].float()  # [L, Hkv, d]
            scores = torch.einsum("hgd,lhd->hgl", grouped[request], k) * self.shape.scaling
            out[request] = torch.einsum("hgl,lhd->hgd", scores.softmax(-1), v)
        return out.view_as(queries).to(queries.dtype)
