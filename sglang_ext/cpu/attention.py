"""The attention backend of the CPU platform, for paired rows and unpaired ones: new queries only, over the pool itself.

Upstream's torch_native computes every cached token's query again in extend, and copies each request's keys and values.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from sglang.srt.layers.attention.torch_native_backend import TorchNativeAttnBackend
from sglang.srt.layers.radix_attention import AttentionType, RadixAttention

from descant.kernels.cpu import operators
from descant.sglang_ext.platform import ATTENTION_BACKEND


class CpuAttentionBackend(TorchNativeAttnBackend):
    """Planned from nothing but the batch's own fields; a layer that it does not know is upstream's."""

    def __init__(self, model_runner: Any) -> None:
        super().__init__(model_runner)
        self.operators = operators()
        self.ones = torch.ones(model_runner.req_to_token_pool.req_to_token.shape[0], dtype=torch.int64)

    def forward_decode(
        self, q: Any, k: Any, v: Any, layer: RadixAttention, forward_batch: Any, save_kv_cache: bool = True
    ) -> torch.Tensor:
        """q [B, H * d] -> [B, H * d]."""
        if not self.serves(layer, q):
            return super().forward_decode(q, k, v, layer, forward_batch, save_kv_cache)
        counts = self.ones[: forward_batch.batch_size]
        return self._attend(q, k, v, layer, forward_batch, counts, 1, save_kv_cache)

    def forward_pairs(self, q: Any, k: Any, v: Any, layer: RadixAttention, forward_batch: Any) -> torch.Tensor:
        """As forward_decode, for paired rows as they lie: q [2B, H * d] -> [2B, H * d], k and v [2B, Hkv * d].

        The operator joins the two queries of a request itself, by reading them side by side.
        """
        counts = self.ones[: forward_batch.batch_size]
        return self._attend(q, k, v, layer, forward_batch, counts, 2, True)

    def forward_extend(
        self, q: Any, k: Any, v: Any, layer: RadixAttention, forward_batch: Any, save_kv_cache: bool = True
    ) -> torch.Tensor:
        """q [n, H * d] -> [n, H * d], each request's new tokens behind one another."""
        if not self.serves(layer, q):
            return super().forward_extend(q, k, v, layer, forward_batch, save_kv_cache)
        return self._attend(q, k, v, layer, forward_batch, forward_batch.extend_seq_lens, 1, save_kv_cache)

    def lasting_tensors(self) -> Iterator[torch.Tensor]:
        """What every call reads, at the same place."""
        yield self.ones
        yield self.req_to_token_pool.req_to_token
        for layer in range(self.token_to_kv_pool.layer_num):
            yield self.token_to_kv_pool.get_key_buffer(layer)
            yield self.token_to_kv_pool.get_value_buffer(layer)

    def serves(self, layer: RadixAttention, q: torch.Tensor) -> bool:
        """Whether the operators serve this layer; upstream serves the others."""
        return (
            layer.attn_type is AttentionType.DECODER
            and not layer.is_cross_attention
            and layer.sliding_window_size == -1
            and not layer.logit_cap
            and layer.qk_head_dim == layer.v_head_dim
            and q.dtype == self.token_to_kv_pool.dtype
            and (not self.operators.COMPILED or q.dtype in (torch.float32, torch.bfloat16))
        )

    def _attend(
        self, q: Any, k: Any, v: Any, layer: RadixAttention, batch: Any, counts: torch.Tensor, copies: int, save: bool
    ) -> torch.Tensor:
        write: tuple[Any, Any, Any] = (None, None, None)
        if save and k is not None:
            heads = (-1, layer.tp_k_head_num, layer.head_dim)
            write = (k.view(heads), v.view(heads), batch.out_cache_loc)
        out = self.operators.attention(
            q.view(-1, layer.tp_q_head_num, layer.head_dim),
            *write,
            self.token_to_kv_pool.get_key_buffer(layer.layer_id),
            self.token_to_kv_pool.get_value_buffer(layer.layer_id),
            self.req_to_token_pool.req_to_token,
            batch.req_pool_indices,
            batch.seq_lens,
            counts,
            copies,
            layer.scaling,
        )
        return out.flatten(1)


def register_cpu_attention() -> None:
    """Let `--attention-backend descant_cpu` mean CpuAttentionBackend in this process."""
    from sglang.srt.layers.attention.attention_registry import register_attention_backend

    register_attention_backend(ATTENTION_BACKEND)(CpuAttentionBackend)
