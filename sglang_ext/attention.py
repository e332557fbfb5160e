"""Attention over paired rows: encoder rows write and read the KV pool, decoder rows only read it.

Decode: one call of the attention backend for both query sets, joined on the head dimension (kernels/paired/).
Extend: the encoder rows as upstream runs them, then the decoder rows as a batch of their own, whose new tokens are the
last of each request and whose prefix is all before them.

Everything goes through SGLang's AttentionBackend interface. attention_backends/ says what a backend must do beyond it.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from sglang.srt.layers.radix_attention import RadixAttention
from sglang.srt.model_executor.forward_context import get_attn_backend

from descant.kernels.paired import join_rows, split_rows
from descant.sglang_ext.attention_backends import suffix_backend
from descant.sglang_ext.rows import ExtendRows


class Suffixes:
    """The decoder rows of one extend forward, planned once for all its layers.

    encoder_rows: n.
    tokens [m] int64: for each decoder row, its token, which is also its encoder row.
    batch: the ForwardBatch that the attention backend sees for them: an extend of each adapter's request in which only
        its last tokens, one a decoder row, are new. It has the encoder's K and V in the pool and nothing to write.
    backend: the AttentionBackend that is planned for `batch`.
    """

    def __init__(self, plan: ExtendRows, forward_batch: Any, device: torch.device) -> None:
        requests = [i for i, count in enumerate(plan.decoder_counts) if count]
        counts = [plan.decoder_counts[i] for i in requests]
        lengths = [forward_batch.extend_prefix_lens_cpu[i] + forward_batch.extend_seq_lens_cpu[i] for i in requests]
        prefixes = [length - count for length, count in zip(lengths, counts, strict=True)]
        # One copy, and on CUDA one that the host does not wait for: the overlap scheduler runs ahead of the device.
        host = torch.tensor([*plan.decoder_tokens, *requests, *counts, *prefixes], pin_memory=device.type == "cuda")
        m, b = len(plan.decoder_tokens), len(requests)
        self.tokens, index, new, prefix = host.to(device, non_blocking=True).split([m, b, b, b])
        self.encoder_rows = plan.encoder_rows

        batch = copy.copy(forward_batch)
        batch.batch_size = b
        batch.input_ids = forward_batch.input_ids[self.tokens]
        batch.positions = forward_batch.positions[self.tokens]
        batch.req_pool_indices = forward_batch.req_pool_indices[index]
        batch.seq_lens = forward_batch.seq_lens[index]
        batch.seq_lens_cpu = torch.tensor(lengths)
        batch.seq_lens_sum = sum(lengths)
        batch.out_cache_loc = forward_batch.out_cache_loc[self.tokens]
        batch.extend_num_tokens = m
        batch.extend_seq_lens, batch.extend_seq_lens_cpu = new.int(), counts
        batch.extend_prefix_lens, batch.extend_prefix_lens_cpu = prefix.int(), prefixes
        batch.extend_start_loc = (new.cumsum(0) - new).int()
        self.batch = batch
        self.backend = suffix_backend(get_attn_backend())
        self.backend.init_forward_metadata(batch)


class PairedAttention:
    """What takes the place of one layer's `RadixAttention.forward`.

    A batch whose rows are not paired goes to the layer's own forward, untouched.
    """

    def __init__(self, layer: RadixAttention) -> None:
        self.layer = layer
        self.unpaired = layer.forward
        # Not a submodule: it has no weights, and the model's module names must stay upstream's.
        self.joined = RadixAttention(
            2 * layer.tp_q_head_num, layer.head_dim, layer.scaling, layer.tp_k_head_num, layer.layer_id
        )
        for scale in ("k_scale", "v_scale", "k_scale_float", "v_scale_float"):
            setattr(self.joined, scale, getattr(layer, scale))

    def __call__(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        forward_batch: Any,
        save_kv_cache: bool = True,
        **kwargs: Any,
    ) -> torch.Tensor:
        """q [rows, H * d], k and v [rows, Hkv * d] -> [rows, H * d], rows as rows.py lays them out.

        Raises:
            ValueError: the model's own code writes K and V (every row's, then), or asks attention for more.
        """
        if not getattr(forward_batch, "paired", False):
            return self.unpaired(q, k, v, forward_batch, save_kv_cache, **kwargs)
        if kwargs or not save_kv_cache:
            what = f"passes {', '.join(kwargs)} to attention" if kwargs else "writes K and V by a kernel of its own"
            raise ValueError(f"This model {what}, which paired rows cannot follow; use --kv-sharing nonshared.")
        k = k.view(-1, self.layer.tp_k_head_num, self.layer.head_dim)
        v = v.view(-1, self.layer.tp_k_head_num, self.layer.head_dim)
        if forward_batch.forward_mode.is_decode():
            return self._decode(q, k, v, forward_batch)
        return self._extend(q, k, v, forward_batch, forward_batch.suffixes)

    def _decode(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, forward_batch: Any) -> torch.Tensor:
        layer, backend = self.layer, get_attn_backend()
        if hasattr(backend, "forward_pairs") and backend.serves(layer, q):
            return backend.forward_pairs(q, k, v, layer, forward_batch)
        joined = join_rows(q.view(-1, layer.tp_q_head_num, layer.head_dim), layer.tp_k_head_num)
        # The decoder rows' own keys and values go nowhere.
        keys, values = k[0::2].contiguous(), v[0::2].contiguous()
        out = backend.forward_decode(joined.flatten(1), keys, values, self.joined, forward_batch, True)
        return split_rows(out.view_as(joined), layer.tp_k_head_num).flatten(1)

    def _extend(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, forward_batch: Any, suffixes: Suffixes
    ) -> torch.Tensor:
        n, tokens = suffixes.encoder_rows, suffixes.tokens
        encoder = get_attn_backend().forward_extend(q[:n], k[:n], v[:n], self.layer, forward_batch, True)
        decoder = suffixes.backend.forward_extend(q[n:], k[tokens], v[tokens], self.layer, suffixes.batch, False)
        return torch.cat([encoder, decoder])
