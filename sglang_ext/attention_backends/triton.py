"""SGLang's Triton attention backend, with paired decode by our own kernel.

Unpaired batches run upstream's code with upstream's metadata, untouched. A paired decode reads the slot table that
these metadata already hold, which knows nothing of heads, so metadata need no change either: neither eager, nor where
a CUDA graph is captured or replayed. Upstream's own grouped decode cannot take the joined heads: its buffers hold H
heads, and it is wrong, without an error, for groups over 16 that are no multiple of 16.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from sglang.srt.layers.attention.triton_backend import TritonAttnBackend
from sglang.srt.mem_cache.memory_pool import KVWriteLoc

from descant.kernels.paired import PairedShape
from descant.kernels.paired.triton import Partials, TritonDecode, decode


@dataclass(frozen=True)
class Room:
    """The kernel's buffers, for decodes of up to `max_batch` requests."""

    max_batch: int
    partials: Partials


class PairedTritonBackend(TritonAttnBackend):
    """What `--attention-backend triton` means where rows are paired.

    suffixes: upstream's backend, planned for an extend batch's decoder rows while this one is planned for the batch.

    Raises:
        ValueError: on construction, where the model's heads, data types or options cannot be served; one sentence.
    """

    def __init__(self, model_runner: Any) -> None:
        super().__init__(model_runner)
        if (stored := self.token_to_kv_pool.dtype) != model_runner.dtype:
            raise ValueError(
                f"Paired rows need K and V in the model's data type, {model_runner.dtype}, and the cache holds "
                f"{stored}: use --kv-cache-dtype auto, and a checkpoint whose config quantizes no KV."
            )
        self.suffixes = TritonAttnBackend(model_runner)
        # Its scaling is not used: each layer has its own.
        self.paired_shape = PairedShape(2 * self.num_head, self.num_kv_head, self.v_head_dim, 1.0, stored)
        self.eager_room = Room(1, self._partials(1))
        self.graph_room = Room(0, self.eager_room.partials)

    def _partials(self, max_batch: int) -> Partials:
        """For decodes of up to `max_batch` requests. Raises ValueError for heads that the kernel cannot serve."""
        return TritonDecode(self.paired_shape, torch.device(self.device), max_batch).partials

    def init_cuda_graph_state(self, max_bs: int, max_num_tokens: int, *args: Any, **kwargs: Any) -> None:
        """Before any capture: captured graphs keep the addresses of what is allocated here, so it is never replaced."""
        super().init_cuda_graph_state(max_bs, max_num_tokens, *args, **kwargs)
        self.graph_room = Room(max_bs, self._partials(max_bs))

    def _room(self, batch: int) -> Partials:
        """Of the graphs, where it suffices; forwards follow one another on one stream."""
        if batch <= self.graph_room.max_batch:
            return self.graph_room.partials
        if batch > self.eager_room.max_batch:
            grown = 1 << (batch - 1).bit_length()
            self.eager_room = Room(grown, self._partials(grown))
        return self.eager_room.partials

    def forward_decode(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        layer: Any,
        forward_batch: Any,
        save_kv_cache: bool = True,
        **kwargs: Any,
    ) -> torch.Tensor:
        """q [B, 2H * d] joined, k and v [B, Hkv, d] -> [B, 2H * d] where rows are paired; else upstream's."""
        if not getattr(forward_batch, "paired", False):
            return super().forward_decode(q, k, v, layer, forward_batch, save_kv_cache, **kwargs)
        metadata = self.forward_metadata
        if save_kv_cache:
            self._set_kv_buffer(
                forward_batch, layer, KVWriteLoc.for_batch(forward_batch), k, v, layer.k_scale, layer.v_scale
            )
        queries = q.view(-1, layer.tp_q_head_num, layer.head_dim)
        out = decode(
            queries,
            self.token_to_kv_pool.get_key_buffer(layer.layer_id),
            self.token_to_kv_pool.get_value_buffer(layer.layer_id),
            metadata.kv_indptr,
            metadata.kv_indices,
            layer.scaling,
            self._room(queries.shape[0]),
        )
        return out.view_as(q)
