"""LoRA over a RowPlan: which adapter each row of a forward runs under, and which adapters are let in."""

from __future__ import annotations

import math
import os
from typing import Any

import torch
from sglang.srt.lora.backend.lora_registry import register_lora_backend
from sglang.srt.lora.backend.torch_backend import TorchNativeLoRABackend, TorchNativeLoRABatchInfo
from sglang.srt.lora.lora_config import LoRAConfig
from sglang.srt.lora.lora_manager import LoRAManager
from sglang.srt.lora.lora_registry import LoRARef
from sglang.srt.lora.utils import generate_sequence_lengths

from descant.sglang_ext.active import active_scheme, allows_kv_adapters
from descant.sglang_ext.batch import batch_shape
from descant.sglang_ext.rows import RowPlan
from descant.sglang_ext.schemes.adapters import refusal, refusal_of_modules


class SegmentLoRABackend(TorchNativeLoRABackend):
    """Upstream's torch backend, told its rows as explicit segments and asking for no pinned memory."""

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
        """One segment a request: the rows of an unpaired forward."""
        self.prepare_lora_token_segments(
            segment_lens=generate_sequence_lengths(forward_batch, device="cpu").tolist(),
            weight_indices=weight_indices,
            lora_ranks=lora_ranks,
            scalings=scalings,
        )

    def prepare_lora_token_segments(
        self,
        *,
        segment_lens: list[int],
        weight_indices: list[int],
        lora_ranks: list[int],
        scalings: list[float],
    ) -> None:
        """`segment_lens[i]` consecutive rows under the adapter in slot `weight_indices[i]` of the memory pool."""
        lens: list[int] = []
        slots: list[int] = []
        for length, slot in zip(segment_lens, weight_indices, strict=True):
            if slots and slots[-1] == slot:
                lens[-1] += length
            else:
                lens.append(length)
                slots.append(slot)
        lens_tensor = torch.tensor(lens, dtype=torch.int32)
        indptr = torch.zeros(len(lens) + 1, dtype=torch.int32)
        indptr[1:] = torch.cumsum(lens_tensor, dim=0)
        slots_tensor = torch.tensor(slots, dtype=torch.int32)
        ranks_tensor = torch.tensor(lora_ranks, dtype=torch.int32)
        scalings_tensor = torch.tensor(scalings, dtype=torch.float)
        self.batch_info = TorchNativeLoRABatchInfo(
            bs=len(lens),
            num_segments=len(lens),
            max_len=max(lens, default=0),
            use_cuda_graph=False,
            seg_lens=lens_tensor,
            seg_indptr=indptr,
            weight_indices=slots_tensor,
            lora_ranks=ranks_tensor,
            scalings=scalings_tensor,
            permutation=None,
            expected_tokens=sum(lens),
            lora_ranks_cpu=ranks_tensor,
            seg_indptr_cpu=indptr,
            seg_lens_cpu=lens_tensor,
            weight_indices_cpu=slots_tensor,
            scalings_cpu=scalings_tensor,
        )


def register_cpu_backend() -> None:
    """Let `--lora-backend torch_native` mean SegmentLoRABackend in this process."""
    register_lora_backend("torch_native")(lambda: SegmentLoRABackend)


class SharingLoRAManager(LoRAManager):
    """Upstream's manager, with the active scheme's say in which adapters load and under which adapter each row runs."""

    def validate_new_adapter(self, lora_config: LoRAConfig, lora_ref: LoRARef) -> None:
        """Refuse what would be served wrong.

        Raises:
            ValueError: one sentence that names the adapter, the modules or option, and the way out.
        """
        reason = refusal(active_scheme(), str(lora_ref.lora_name), lora_config.hf_config, allows_kv_adapters())
        if reason:
            raise ValueError(reason)
        super().validate_new_adapter(lora_config, lora_ref)

    def load_lora_weights(self, lora_ref: LoRARef) -> None:
        super().load_lora_weights(lora_ref)
        self._scale(lora_ref)

    def load_lora_weights_from_tensors(self, lora_ref: LoRARef, tensors: dict[str, torch.Tensor]) -> None:
        super().load_lora_weights_from_tensors(lora_ref, tensors)
        self._scale(lora_ref)

    def _scale(self, lora_ref: LoRARef) -> None:
        """rsLoRA's scale, alpha / sqrt(r), which upstream ignores; a sharing scheme's answers are exact."""
        adapter = self.loras[lora_ref.lora_id]
        if active_scheme().shares_namespace and adapter.config.hf_config.get("use_rslora"):
            adapter.scaling = adapter.config.lora_alpha / math.sqrt(adapter.config.r)

    def validate_lora_batch(self, lora_ids: set[str | None]) -> bool:
        """Paired forwards always run base rows too, so the base model's slot counts in every batch."""
        return super().validate_lora_batch(self._with_base(lora_ids))

    def fetch_new_loras(self, new_loras: set[str | None], running_loras: set[str | None] = frozenset()) -> None:  # type: ignore[assignment]
        super().fetch_new_loras(self._with_base(new_loras), set(running_loras))

    @staticmethod
    def _with_base(lora_ids: set[str | None]) -> set[str | None]:
        # Otherwise the pool may evict the base slot, and encoder rows would run under some adapter's weights.
        return lora_ids | {None} if active_scheme().pairs_rows else lora_ids

    def prepare_lora_batch(self, forward_batch: Any) -> None:
        plan = active_scheme().plan(batch_shape(forward_batch))
        if plan is None:
            super().prepare_lora_batch(forward_batch)
        else:
            self.prepare_lora_rows(plan)

    def prepare_lora_rows(self, plan: RowPlan) -> None:
        self.prepare_lora_token_segments(
            lora_ids=[segment.adapter for segment in plan.segments],
            segment_lens=[segment.length for segment in plan.segments],
        )


def updated_modules(adapter: Any) -> set[str]:
    """The modules that a loaded adapter's tensors update: the names before lora_B whose B is not all zero."""
    names: set[str] = set()
    for layer in [*adapter.layers, adapter]:
        tensors = layer.weights if layer is not adapter else adapter.embedding_layers
        for name, tensor in tensors.items():
            module, found, _ = name.partition(".lora_B") if ".lora_B" in name else name.partition(".lora_embedding_B")
            if found and tensor.any():
                names.add(module.rsplit(".", 1)[-1])
    return names


def complete_adapter(adapter: Any) -> None:
    """Before LoRAAdapter._normalize_weights: check what the tensors update, which a config may not tell, and add zero
    updates for the parts of a stacked projection that an adapter lacks.

    Upstream stacks q, k, v and gate, up. It fails (KeyError) on q_proj without v_proj; the other gaps it drops with a
    warning, which a sharing scheme must not: its answers are exact or refused.
    """
    name = os.path.basename(str(adapter.config.path or adapter.uid))
    if reason := refusal_of_modules(active_scheme(), name, updated_modules(adapter), allows_kv_adapters()):
        raise ValueError(reason)
    config = adapter.base_hf_config
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    query, key = config.num_attention_heads * head_dim, config.num_key_value_heads * head_dim
    attention = {"q_proj": query, "k_proj": key, "v_proj": key}
    mlp = {"gate_proj": config.intermediate_size, "up_proj": config.intermediate_size}
    everything = active_scheme().shares_namespace
    for layer in adapter.layers:
        if everything or any("q_proj" in name for name in layer.weights):
            complete_stack(layer.weights, attention)
        if everything:
            complete_stack(layer.weights, mlp)


def complete_stack(weights: dict[str, torch.Tensor], widths: dict[str, int]) -> None:
    """If `weights` updates some of the projections in `widths`, add zero updates for the rest, in place.

    Args:
        weights: one layer's tensors by name; lora_A [r, in], lora_B [out, r].
        widths: out of each projection of the stack, before tensor-parallel sharding.
    """
    for name in list(weights):
        present = next((part for part in widths if f".{part}." in name), None)
        if present is None:
            continue
        for part, width in widths.items():
            missing = name.replace(f".{present}.", f".{part}.")
            if missing not in weights:
                weight = weights[name]
                rows = weight.shape[0] if "lora_A" in name else width
                weights[missing] = weight.new_zeros(rows, weight.shape[1])
