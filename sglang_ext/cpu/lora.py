"""The LoRA backend of the CPU platform: base and update of all rows in one operator, whatever adapters they have."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from sglang.srt.lora.backend.lora_registry import register_lora_backend
from sglang.srt.lora.backend.torch_backend import TorchNativeLoRABackend, TorchNativeLoRABatchInfo
from sglang.srt.lora.dense.plan import DenseLoraKind
from sglang.srt.lora.utils import generate_sequence_lengths

from descant.kernels.cpu import operators
from descant.sglang_ext.cpu.layers import CpuLinearMethod


class CpuLoRABackend(TorchNativeLoRABackend):
    """Upstream's torch backend, which asks for no pinned memory, and computes linear layers by kernels/cpu/.

    Embeddings and the head stay upstream's.
    """

    name = "torch_native"

    def prepare_lora_batch(
        self,
        forward_batch: Any,
        weight_indices: list[int],
        lora_ranks: list[int],
        scalings: list[float],
        use_cuda_graph: bool,
        use_prefill_cuda_graph: bool = False,
    ) -> None:
        """Each request's rows under the adapter in its slot of the memory pool."""
        lengths = generate_sequence_lengths(forward_batch, device="cpu")
        slots = torch.tensor(weight_indices, dtype=torch.int32)
        starts = torch.zeros(len(lengths) + 1, dtype=torch.int32)
        starts[1:] = lengths.cumsum(0)
        ranks = torch.tensor(lora_ranks, dtype=torch.int32)
        scales = torch.tensor(scalings, dtype=torch.float)
        # What the layers read of a batch: each row's slot of the memory pool, and each slot's rank and scale.
        rows = slots if forward_batch.forward_mode.is_decode() else slots.repeat_interleave(lengths)
        self.row_inputs = [rows, ranks, scales]
        self.batch_info = TorchNativeLoRABatchInfo(
            bs=len(lengths),
            num_segments=len(lengths),
            max_len=int(lengths.max()) if len(lengths) else 0,
            use_cuda_graph=False,
            seg_lens=lengths,
            seg_indptr=starts,
            weight_indices=slots,
            lora_ranks=ranks,
            scalings=scales,
            permutation=None,
            expected_tokens=int(starts[-1]),
            lora_ranks_cpu=ranks,
            seg_indptr_cpu=starts,
            seg_lens_cpu=lengths,
            weight_indices_cpu=slots,
            scalings_cpu=scales,
        )

    def forward_with_base(
        self,
        layer: Any,
        x: torch.Tensor,
        base_fn: Callable[[], torch.Tensor],
        lora_a: torch.Tensor,
        lora_b: torch.Tensor,
        output_offset: torch.Tensor,
        offsets: tuple[int, ...],
        *,
        kind: Any = DenseLoraKind.LINEAR,
        **more: Any,
    ) -> torch.Tensor:
        """x [rows, in] -> [rows, out], base and update."""
        base = layer.base_layer
        if kind != DenseLoraKind.LINEAR or not isinstance(base.quant_method, CpuLinearMethod):
            return super().forward_with_base(
                layer, x, base_fn, lora_a, lora_b, output_offset, offsets, kind=kind, **more
            )
        bias = None if base.skip_bias_add else base.bias
        return operators().linear(x, base.weight, bias, lora_a, lora_b, *self.row_inputs, list(offsets[1:]))


def register_cpu_lora() -> None:
    """Let `--lora-backend torch_native` mean CpuLoRABackend in this process."""
    register_lora_backend("torch_native")(lambda: CpuLoRABackend)
