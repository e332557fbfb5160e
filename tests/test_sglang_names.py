"""What our subclasses and views take for granted in SGLang's sources, by name: another SGLang is found out here."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable
from typing import Any

import pytest
from sglang.srt.layers.attention.base_attn_backend import AttentionBackend
from sglang.srt.layers.attention.triton_backend import ForwardMetadata, TritonAttnBackend
from sglang.srt.layers.radix_attention import RadixAttention
from sglang.srt.lora.backend.base_backend import BaseLoRABackend
from sglang.srt.lora.backend.chunked_backend import ChunkedSgmvLoRABackend
from sglang.srt.lora.backend.triton_backend import TritonLoRABackend
from sglang.srt.lora.backend.triton_v2_backend import TritonV2LoRABackend
from sglang.srt.mem_cache.memory_pool import KVWriteLoc
from sglang.srt.model_executor.forward_batch_info import ForwardBatch
from sglang.srt.model_executor.model_runner_components import attention_backend_setup
from sglang.srt.model_executor.runner import decode_cuda_graph_runner

from descant.sglang_ext.lora import SharingLoRAManager

UpstreamManager = SharingLoRAManager.__mro__[1]


def _parameters(function: Callable[..., Any]) -> list[str]:
    return list(inspect.signature(inspect.unwrap(function)).parameters)


def test_the_fields_that_views_of_a_batch_set() -> None:
    """A view that sets a field of another name would leave SGLang's own value in place."""
    fields = {field.name for field in dataclasses.fields(ForwardBatch)}
    assert fields >= {
        "batch_size", "input_ids", "positions", "req_pool_indices", "seq_lens", "seq_lens_cpu", "seq_lens_sum",
        "out_cache_loc", "lora_ids", "return_logprob", "extend_num_tokens", "extend_seq_lens", "extend_seq_lens_cpu",
        "extend_prefix_lens", "extend_prefix_lens_cpu", "extend_start_loc", "extend_logprob_start_lens_cpu",
        "forward_mode",
    }  # fmt: skip
    assert not {"paired", "suffixes"} & fields


def test_the_attention_that_backends_are_asked_for() -> None:
    wanted = ["self", "q", "k", "v", "layer", "forward_batch", "save_kv_cache"]
    for backend in (AttentionBackend, TritonAttnBackend):
        for method in (backend.forward_decode, backend.forward_extend):
            assert _parameters(method)[: len(wanted)] == wanted
        assert _parameters(backend.init_forward_metadata)[:2] == ["self", "forward_batch"]
    assert _parameters(RadixAttention.forward)[:6] == ["self", "q", "k", "v", "forward_batch", "save_kv_cache"]
    assert _parameters(RadixAttention)[:5] == ["num_heads", "head_dim", "scaling", "num_kv_heads", "layer_id"]


def test_what_the_triton_backend_is_made_of() -> None:
    assert _parameters(TritonAttnBackend)[0] == "model_runner"
    assert _parameters(TritonAttnBackend.init_cuda_graph_state)[:3] == ["self", "max_bs", "max_num_tokens"]
    assert _parameters(TritonAttnBackend._set_kv_buffer) == [
        "self", "forward_batch", "layer", "loc_info", "k", "v", "k_scale", "v_scale",
    ]  # fmt: skip
    assert {"kv_indptr", "kv_indices"} <= {field.name for field in dataclasses.fields(ForwardMetadata)}
    source = inspect.getsource(TritonAttnBackend.__init__)
    for name in ("num_head", "num_kv_head", "v_head_dim", "token_to_kv_pool", "device"):
        assert f"self.{name} = " in source, f"TritonAttnBackend has no {name}"
    assert _parameters(KVWriteLoc.for_batch)[0] == "forward_batch"


def test_how_a_backend_is_chosen_by_name() -> None:
    build = attention_backend_setup._build_full_attention_backend_from_str
    assert _parameters(build) == ["model_runner", "backend_str", "init_new_workspace"]


@pytest.mark.parametrize("backend", [ChunkedSgmvLoRABackend, TritonLoRABackend, TritonV2LoRABackend])
def test_what_lora_backends_prepare(backend: type[BaseLoRABackend]) -> None:
    assert _parameters(backend.prepare_lora_batch)[:5] == [
        "self", "forward_batch", "weight_indices", "lora_ranks", "scalings",
    ]  # fmt: skip
    assert _parameters(backend.init_decode_cuda_graph_batch_info) == [
        "self", "max_bs_in_cuda_graph", "num_tokens_per_req",
    ]  # fmt: skip
    assert hasattr(BaseLoRABackend, "skip_inactive_dense_lora")


def test_what_the_lora_manager_is_asked_for() -> None:
    for name in ("prepare_lora_batch", "fetch_new_loras", "validate_lora_batch", "init_lora_shapes"):
        assert callable(getattr(UpstreamManager, name))
    assert _parameters(UpstreamManager.init_decode_cuda_graph_batch_info) == [
        "self", "max_bs_in_cuda_graph", "num_tokens_per_req",
    ]  # fmt: skip
    assert isinstance(UpstreamManager.supports_prefill_cuda_graph, property)
    assert _parameters(UpstreamManager.load_lora_adapter) == ["self", "lora_ref"]
    assert _parameters(UpstreamManager.create_lora_update_result) == ["self", "success", "error_message"]


def test_decode_graphs_are_captured_once_for_each_kind_of_batch() -> None:
    """The names of the two captures, and that a replay chooses between them by the batch's adapters."""
    runner = decode_cuda_graph_runner.DecodeCudaGraphRunner
    assert '("lora", "nolora") if self.record_nolora_graph' in inspect.getsource(runner._capture_one_stream)
    assert "skip_inactive_dense_lora" in inspect.getsource(decode_cuda_graph_runner._lora_backend_skips_inactive)
    chooses = inspect.getsource(runner._resolve_lora_variant)
    assert "uid is not None for uid in forward_batch.lora_ids" in chooses
    assert chooses.index('return "lora"') < chooses.index('return "nolora"')
