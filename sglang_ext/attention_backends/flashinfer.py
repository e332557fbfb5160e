"""SGLang's FlashInfer backend for paired rows, kept under its own name: `--attention-backend flashinfer`.

FlashInfer plans a step for a number of query heads and does not check it when it runs. A paired decode has 2H, a
base-only one H, and an extend's decoder rows are a second batch beside its encoder rows. So there are two of upstream's
backends: this object serves base-only decode and an extend's encoder rows. `suffixes`, with plans, wrappers and CUDA
graphs of its own, serves paired decode and an extend's decoder rows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from sglang.srt.layers.attention.flashinfer_backend import FlashInferAttnBackend
from sglang.srt.runtime_context import get_parallel

from descant.kernels.paired.flashinfer import needs_tensor_cores, unsupported
from descant.sglang_ext.batch import row_batch
from descant.sglang_ext.rows import DecodeBatch


class PairedFlashInferBackend(FlashInferAttnBackend):
    """What `--attention-backend flashinfer` means where rows are paired.

    float16 and bfloat16, heads of 64, 128 or 256, any group: a joined group of 2 takes FlashInfer's CUDA-core kernel,
    larger ones its tensor-core kernel, which has every group. So no group needs another backend's kernel.

    suffixes: upstream's backend for a paired decode and for an extend's decoder rows.

    Raises:
        ValueError: on construction, where the model or the KV cache cannot be served; one sentence.
    """

    def __init__(self, model_runner: Any) -> None:
        if reason := unsupported_runner(model_runner):
            raise ValueError(
                f"--attention-backend flashinfer cannot serve paired rows here: {reason}; "
                f"use --attention-backend triton."
            )
        super().__init__(model_runner)
        # Upstream checks this in its own class only.
        self._check_kv_attention_access("prefill", self.prefill_kv_access)
        self._check_kv_attention_access("decode", self.decode_kv_access)
        self.suffixes = _PairedRowsBackend(model_runner)
        # The backend that holds the current step's plan: this one, or `suffixes` for a paired decode.
        self.planned: FlashInferAttnBackend = self

    def init_forward_metadata(self, forward_batch: Any) -> None:
        self._plan(forward_batch, FlashInferAttnBackend.init_forward_metadata)

    def init_forward_metadata_out_graph(self, forward_batch: Any, in_capture: bool = False) -> None:
        self._plan(forward_batch, FlashInferAttnBackend.init_forward_metadata_out_graph, in_capture=in_capture)

    def _plan(self, forward_batch: Any, plan: Callable[..., None], **kwargs: Any) -> None:
        batch = row_batch(forward_batch)
        paired = isinstance(batch, DecodeBatch) and batch.adapted
        self.planned = self.suffixes if paired else self
        plan(self.planned, forward_batch, **kwargs)

    def init_cuda_graph_state(
        self, max_bs: int, max_num_tokens: int, kv_indices_buf: torch.Tensor | None = None
    ) -> None:
        super().init_cuda_graph_state(max_bs, max_num_tokens, kv_indices_buf)
        # Paired and base-only graphs read their slots from one buffer: it is rewritten before each replay.
        self.suffixes.cuda_graph_kv_indices = self.cuda_graph_kv_indices

    def forward_decode(
        self, q: Any, k: Any, v: Any, layer: Any, forward_batch: Any, save_kv_cache: bool = True
    ) -> torch.Tensor:
        """q [B, heads * d] of a `layer` with H heads, or 2H where the batch is paired -> [B, heads * d].

        Raises:
            RuntimeError: the step was planned for another number of heads.
        """
        planned = self.planned.indices_updater_decode.num_qo_heads
        if layer.tp_q_head_num != planned:  # FlashInfer would not say
            raise RuntimeError(
                f"Attention was planned for {planned} query heads and layer {layer.layer_id} has "
                f"{layer.tp_q_head_num}: --attention-backend flashinfer cannot decode this batch."
            )
        return FlashInferAttnBackend.forward_decode(self.planned, q, k, v, layer, forward_batch, save_kv_cache)


class _PairedRowsBackend(FlashInferAttnBackend):
    """Upstream's backend with decode planned for 2H heads, and extend for queries over a pool that has their KV."""

    decode_use_tensor_cores: bool

    def __init__(self, model_runner: Any) -> None:
        super().__init__(model_runner)
        # The encoder rows have written the new tokens' K and V by now: no second, ragged attention over them.
        self.use_paged = True
        decode = self.indices_updater_decode
        decode.num_qo_heads *= 2
        if needs_tensor_cores(decode.num_qo_heads // decode.num_kv_heads) and not self.decode_use_tensor_cores:
            from flashinfer import BatchDecodeWithPagedKVCacheWrapper

            self.decode_use_tensor_cores = True  # graphs' wrappers, which upstream builds later, follow it
            self.decode_wrappers = [
                BatchDecodeWithPagedKVCacheWrapper(
                    self.workspace_buffer, "NHD", backend=self.decode_backend, use_tensor_cores=True
                )
            ]


def unsupported_runner(model_runner: Any) -> str | None:
    """Why paired rows of this runner's model cannot be attended with FlashInfer, or None."""
    config = model_runner.model_config
    if config.is_encoder_decoder:
        return "the model has cross-attention"
    if model_runner.sliding_window_size is not None:
        return "the model has a sliding window"
    if not model_runner.spec_algorithm.is_none():
        return "draft tokens of speculative decoding have no decoder rows"
    if get_parallel().attn_dcp_size > 1:
        return "context parallelism of decode splits a request's KV"
    if model_runner.kv_cache_dtype != model_runner.dtype:
        return f"the KV cache is {_name(model_runner.kv_cache_dtype)} and the model {_name(model_runner.dtype)}"
    return unsupported(config.head_dim, model_runner.dtype)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
