"""LoRA over a RowPlan: which adapter each row of a forward runs under, and which adapters are let in."""

from __future__ import annotations

import copy
import math
import os
from pathlib import Path
from typing import Any

import torch
from sglang.srt.lora.lora_config import LoRAConfig
from sglang.srt.lora.lora_manager import LoRAManager
from sglang.srt.lora.lora_registry import LoRARef

from descant.sglang_ext.active import active_scheme, allows_kv_adapters, base_fingerprint
from descant.sglang_ext.batch import row_batch
from descant.sglang_ext.rows import ExtendRows, RowPlan
from descant.sglang_ext.schemes.adapter_files import AdapterFileError, misfit, on_this_machine, read_adapter
from descant.sglang_ext.schemes.adapters import refusal, refusal_of_modules, refusal_of_name


class SharingLoRAManager(LoRAManager):
    """Upstream's manager, with the active scheme's say in which adapters load and under which adapter each row runs.

    It works with every LoRA backend: a backend is told of rows as if they were requests.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if active_scheme().pairs_rows:
            # SGLang then captures every decode graph twice, "lora" and "nolora": the paired forward and upstream's.
            self.lora_backend.skip_inactive_dense_lora = True

    @property
    def supports_prefill_cuda_graph(self) -> bool:
        """Not for paired rows: how many decoder rows an extend has is no function of how many tokens it has."""
        return super().supports_prefill_cuda_graph and not active_scheme().pairs_rows

    def init_lora_shapes(self, *args: Any, **kwargs: Any) -> None:
        """Without the head: no adapter may update it, and its rows are the requests', not the plan's."""
        super().init_lora_shapes(*args, **kwargs)
        if active_scheme().pairs_rows:
            self.target_modules.discard("lm_head")

    def load_lora_adapter(self, lora_ref: LoRARef) -> Any:
        """What has been asked for while the server runs; files that are missing or damaged are refused in a sentence,
        as those of --lora-paths are before it starts.
        """
        path = str(lora_ref.lora_path)
        if active_scheme().shares_namespace and on_this_machine(path):
            try:
                read_adapter(Path(path))
            except AdapterFileError as error:
                message = f"Adapter '{lora_ref.lora_name}' cannot be loaded: {error}"
                return self.create_lora_update_result(success=False, error_message=message)
        return super().load_lora_adapter(lora_ref)

    def validate_new_adapter(self, lora_config: LoRAConfig, lora_ref: LoRARef) -> None:
        """Refuse what would be served wrong.

        Raises:
            ValueError: one sentence that names the adapter, the modules or option, and the way out.
        """
        scheme, name = active_scheme(), str(lora_ref.lora_name)
        reason = refusal_of_name(scheme, name) or refusal(
            scheme, name, lora_config.hf_config, allows_kv_adapters(), base_fingerprint()
        )
        if reason:
            raise ValueError(reason)
        super().validate_new_adapter(lora_config, lora_ref)
        if scheme.pairs_rows and lora_config.path is not None and Path(lora_config.path).is_dir():
            _, tensors = read_adapter(Path(lora_config.path))
            widths = projection_widths(self.base_hf_config)
            # SGLang takes a shard of each tensor: one that is too wide it would cut to size, and serve.
            if found := misfit(tensors, lora_config.r, self.base_hf_config.num_hidden_layers, widths):
                raise ValueError(
                    f"Adapter '{name}' does not fit the base model: {found}; load one that was trained on this model."
                )

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
        plan = active_scheme().plan(row_batch(forward_batch))
        super().prepare_lora_batch(forward_batch if plan is None else rows_as_requests(plan, forward_batch))

    def init_decode_cuda_graph_batch_info(self, max_bs_in_cuda_graph: int, num_tokens_per_req: int) -> None:
        """A LoRA backend keeps one buffer for all graphs; a paired decode of B requests fills 2B places of it."""
        rows = 2 if active_scheme().pairs_rows else 1
        super().init_decode_cuda_graph_batch_info(rows * max_bs_in_cuda_graph, num_tokens_per_req)


def rows_as_requests(plan: RowPlan, forward_batch: Any) -> Any:
    """A view of the batch in which each segment of rows is a request: what every LoRA backend of SGLang can prepare.

    A copy of the ForwardBatch: decode of 2B requests, or extend of one request per segment.
    """
    segments = plan.segments
    view = copy.copy(forward_batch)
    view.batch_size = len(segments)
    view.lora_ids = [segment.adapter for segment in segments]
    view.return_logprob = False  # asked for by the head's LoRA alone, which is refused
    if isinstance(plan, ExtendRows):
        view.extend_seq_lens_cpu = [segment.length for segment in segments]
        view.extend_seq_lens = torch.tensor(view.extend_seq_lens_cpu, dtype=torch.int32)  # backends move it themselves
        view.extend_num_tokens = sum(view.extend_seq_lens_cpu)
    return view


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
    widths = {module: out for module, (_, out) in projection_widths(adapter.base_hf_config).items()}
    attention = {module: widths[module] for module in ("q_proj", "k_proj", "v_proj")}
    mlp = {module: widths[module] for module in ("gate_proj", "up_proj")}
    everything = active_scheme().shares_namespace
    for layer in adapter.layers:
        if everything or any("q_proj" in name for name in layer.weights):
            complete_stack(layer.weights, attention)
        if everything:
            complete_stack(layer.weights, mlp)


def projection_widths(config: Any) -> dict[str, tuple[int, int]]:
    """In and out of each projection of a layer, before tensor-parallel sharding, from the model's config."""
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    query, key = config.num_attention_heads * head_dim, config.num_key_value_heads * head_dim
    hidden, inner = config.hidden_size, config.intermediate_size
    return {
        "q_proj": (hidden, query),
        "k_proj": (hidden, key),
        "v_proj": (hidden, key),
        "o_proj": (query, hidden),
        "gate_proj": (hidden, inner),
        "up_proj": (hidden, inner),
        "down_proj": (inner, hidden),
    }


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
