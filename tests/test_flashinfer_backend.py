"""SGLang's FlashInfer backend for paired rows, the real class, on CPU tensors: what is planned, and what comes out.

FlashInfer never checks a plan against what it runs, so these tests hold the plans: 2H heads where a batch is paired, H
where it is not, in eager decode and at a graph's capture and replay; and one of their own for an extend's decoder rows.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from flashinfer_cpu import Module, attention, flashinfer_on_cpu

KV_HEADS, HEAD_DIM, SCALING, SLOTS, CONTEXT, REQUESTS = 2, 64, 0.2, 60, 24, 4
DTYPE = torch.bfloat16
TOLERANCE = 2e-2  # bfloat16 rounding of values of size one
LENGTHS = (5, 3, 9, 1)  # tokens of request i, whose row in the request table is ROWS[i]
ROWS = (2, 0, 3, 1)


@pytest.fixture
def flashinfer(monkeypatch: pytest.MonkeyPatch) -> Iterator[Module]:
    """FlashInfer on CPU tensors, SGLang's module that uses it, and a published configuration."""
    import flashinfer
    from sglang.srt.layers.attention import flashinfer_backend
    from sglang.srt.plugins import load_plugins
    from sglang.srt.runtime_context import get_context

    load_plugins()
    # SGLang imports these only where it finds a GPU.
    for name in (
        "BatchDecodeWithPagedKVCacheWrapper",
        "BatchPrefillWithPagedKVCacheWrapper",
        "BatchPrefillWithRaggedKVCacheWrapper",
        "fast_decode_plan",
    ):
        monkeypatch.setattr(flashinfer_backend, name, getattr(flashinfer, name), raising=False)
    with flashinfer_on_cpu(monkeypatch) as module, get_context().override_server_args(kv_sharing="icarus"):
        torch.manual_seed(0)
        yield module


class Translator:
    """Stands for SGLang's KVIndexTranslator, whose gather is a Triton kernel: the request table's slots, in order."""

    reads_are_translated = False

    def __init__(self, table: torch.Tensor) -> None:
        self.table = table

    def pack_read_stream(
        self,
        plan: None,
        *,
        req_pool_indices: torch.Tensor,
        seq_lens: torch.Tensor,
        indptr: torch.Tensor,
        out: torch.Tensor,
        kv_start_idx: None,
        kind: Any,
    ) -> None:
        assert kv_start_idx is None
        for i, (row, length) in enumerate(zip(req_pool_indices, seq_lens, strict=True)):
            out[indptr[i] : indptr[i + 1]] = self.table[row, :length]


def runner(group: int, **changes: Any) -> SimpleNamespace:
    """What the backend reads of a ModelRunner: `group` query heads a KV head, a pool of random K and V."""
    from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool
    from sglang.srt.runtime_context import get_server_args
    from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

    pool = MHATokenToKVPool(
        size=SLOTS,
        page_size=1,
        dtype=DTYPE,
        head_num=KV_HEADS,
        head_dim=HEAD_DIM,
        layer_num=1,
        device="cpu",
        enable_memory_saver=False,
        enable_alt_stream=False,
    )
    for buffer in (*pool.k_buffer, *pool.v_buffer):
        buffer.normal_()
    table = 1 + torch.randperm(SLOTS)[: REQUESTS * 10].view(REQUESTS, 10).int()
    model_config = SimpleNamespace(
        num_attention_heads=group * KV_HEADS,
        get_max_num_attention_heads=lambda: group * KV_HEADS,
        get_num_kv_heads=lambda tp, dcp=1: KV_HEADS,
        head_dim=HEAD_DIM,
        v_head_dim=HEAD_DIM,
        context_len=CONTEXT,
        is_multimodal=False,
        is_encoder_decoder=False,
        hf_config=SimpleNamespace(architectures=["LlamaForCausalLM"]),
    )
    fields: dict[str, Any] = {
        "req_to_token_pool": SimpleNamespace(size=REQUESTS, req_to_token=table),
        "token_to_kv_pool": pool,
        "token_to_kv_pool_allocator": SimpleNamespace(get_kvcache=lambda: pool),
        "kv_index_translator": Translator(table),
        "server_args": get_server_args(),
        "prefill_attention_backend_str": "flashinfer",
        "decode_attention_backend_str": "flashinfer",
        "dtype": DTYPE,
        "kv_cache_dtype": DTYPE,
        "model_config": model_config,
        "page_size": 1,
        "sliding_window_size": None,
        "spec_algorithm": SpeculativeAlgorithm.NONE,
        "is_draft_worker": False,
        "device": "cpu",
    }
    return SimpleNamespace(**(fields | changes))


def backend_for(model_runner: SimpleNamespace) -> Any:
    from descant.sglang_ext.attention_backends.flashinfer import PairedFlashInferBackend

    return PairedFlashInferBackend(model_runner)


def decode_batch(adapters: list[str | None], lengths: tuple[int, ...] = LENGTHS) -> SimpleNamespace:
    """A decode of len(adapters) requests, with the fields of a ForwardBatch that a graph's replay view has too."""
    from sglang.srt.model_executor.forward_batch_info import ForwardMode

    b = len(adapters)
    lens = torch.tensor(lengths[:b])
    return SimpleNamespace(
        forward_mode=ForwardMode.DECODE,
        batch_size=b,
        req_pool_indices=torch.tensor(ROWS[:b]),
        seq_lens=lens,
        seq_lens_cpu=lens,
        seq_lens_sum=int(lens.sum()),
        positions=lens - 1,
        encoder_lens=None,
        spec_info=None,
        kv_loc_plan=None,
        out_cache_loc=None,
        lora_ids=adapters,
    )


def layer(heads: int) -> Any:
    from sglang.srt.layers.radix_attention import RadixAttention

    return RadixAttention(heads, HEAD_DIM, SCALING, KV_HEADS, layer_id=0)


def expected(model_runner: SimpleNamespace, q: torch.Tensor, lengths: tuple[int, ...], heads: int) -> torch.Tensor:
    """Decode's attention by its definition, for queries [B, heads * d]."""
    keys, values = model_runner.token_to_kv_pool.get_kv_buffer(0)
    out = []
    for i, query in enumerate(q.view(-1, 1, heads, HEAD_DIM)):
        slots = model_runner.req_to_token_pool.req_to_token[ROWS[i], : lengths[i]].long()
        out.append(attention(query, keys[slots], values[slots], SCALING, causal=False).flatten())
    return torch.stack(out)


def test_eager_decode_is_planned_for_the_heads_that_the_batch_has(flashinfer: Module) -> None:
    """In any order: a plan of one kind leaves nothing behind for the other."""
    model_runner = runner(group=3)
    backend = backend_for(model_runner)
    batches: list[tuple[list[str | None], int]] = [
        (["a", None, "b", None], 12),
        ([None, None], 6),
        ([None, "a"], 12),
        ([None], 6),
        (["a"], 12),
    ]
    for adapters, heads in batches:
        batch = decode_batch(adapters)
        backend.init_forward_metadata(batch)
        assert (flashinfer.last.heads, flashinfer.last.kv_heads, flashinfer.last.graph) == (heads, KV_HEADS, False)
        q = torch.randn(len(adapters), heads * HEAD_DIM, dtype=DTYPE)
        out = backend.forward_decode(q, None, None, layer(heads), batch, False)
        assert (out - expected(model_runner, q, LENGTHS, heads)).abs().max() < TOLERANCE


@pytest.mark.parametrize("adapters", [["a", "b"], [None, None]])
def test_decode_writes_the_encoders_keys_and_values_once(flashinfer: Module, adapters: list[str | None]) -> None:
    model_runner = runner(group=2)
    backend, batch = backend_for(model_runner), decode_batch(adapters)
    table = model_runner.req_to_token_pool.req_to_token
    batch.out_cache_loc = torch.stack([table[ROWS[i], LENGTHS[i] - 1] for i in range(2)]).long()
    batch.out_cache_loc_is_physical = True
    backend.init_forward_metadata(batch)
    heads = 8 if any(adapters) else 4
    q = torch.randn(2, heads * HEAD_DIM, dtype=DTYPE)
    k, v = torch.randn(2, 2, KV_HEADS, HEAD_DIM, dtype=DTYPE)
    out = backend.forward_decode(q, k, v, layer(heads), batch)
    keys, values = model_runner.token_to_kv_pool.get_kv_buffer(0)
    assert torch.equal(keys[batch.out_cache_loc], k)
    assert torch.equal(values[batch.out_cache_loc], v)
    assert (out - expected(model_runner, q, LENGTHS, heads)).abs().max() < TOLERANCE


def test_a_paired_layer_gives_what_each_row_gives_alone(flashinfer: Module) -> None:
    """Through PairedAttention: rows 2b and 2b + 1 are request b's encoder and decoder row; the first alone writes."""
    from sglang.srt.model_executor.forward_context import ForwardContext, forward_context

    from descant.sglang_ext.attention import PairedAttention

    model_runner = runner(group=3)
    backend, batch = backend_for(model_runner), decode_batch(["a", None, "b"])
    table = model_runner.req_to_token_pool.req_to_token
    batch.out_cache_loc = torch.stack([table[ROWS[i], LENGTHS[i] - 1] for i in range(3)]).long()
    batch.out_cache_loc_is_physical = batch.paired = True
    q = torch.randn(6, 6 * HEAD_DIM, dtype=DTYPE)
    k, v = torch.randn(2, 6, KV_HEADS * HEAD_DIM, dtype=DTYPE)
    with forward_context(ForwardContext(attn_backend=backend)):
        backend.init_forward_metadata(batch)
        out = PairedAttention(layer(6))(q, k, v, batch)
    assert torch.equal(model_runner.token_to_kv_pool.get_key_buffer(0)[batch.out_cache_loc].flatten(1), k[0::2])
    for side in (0, 1):
        alone = expected(model_runner, q[side::2].contiguous(), LENGTHS, 6)
        assert (out[side::2] - alone).abs().max() < TOLERANCE


def test_heads_that_were_not_planned_are_an_error(flashinfer: Module) -> None:
    backend, batch = backend_for(runner(group=2)), decode_batch([None, None])
    backend.init_forward_metadata(batch)
    with pytest.raises(RuntimeError, match=r"planned for 4 query heads and layer 0 has 8: --attention-backend flash"):
        backend.forward_decode(torch.zeros(2, 8 * HEAD_DIM, dtype=DTYPE), None, None, layer(8), batch, False)


def test_a_graph_of_each_kind_is_captured_and_replayed_with_its_own_heads(flashinfer: Module) -> None:
    from sglang.srt.model_executor.runner_utils.capture_mode import capture_lora_variant

    model_runner = runner(group=3)
    backend = backend_for(model_runner)
    backend.init_cuda_graph_state(max_bs=REQUESTS, max_num_tokens=REQUESTS)
    captured: dict[tuple[str, int], Any] = {}
    for size in (4, 2):
        for variant, heads in (("lora", 12), ("nolora", 6)):
            with capture_lora_variant(variant):
                batch = decode_batch([None] * size, lengths=(1,) * size)
                backend.init_forward_metadata_out_graph(batch, in_capture=True)
                assert (flashinfer.last.heads, flashinfer.last.graph) == (heads, True)
                q = torch.randn(size, heads * HEAD_DIM, dtype=DTYPE)
                backend.forward_decode(q, None, None, layer(heads), batch, False)
            # What a graph holds: the wrapper that its layers called.
            owner = backend.suffixes if variant == "lora" else backend
            captured[variant, size] = owner.forward_metadata.decode_wrappers[0]
    assert len({id(wrapper) for wrapper in captured.values()}) == 4

    replays: list[tuple[list[str | None], str, int]] = [
        (["a", None, "b", None], "lora", 12),
        ([None] * 4, "nolora", 6),
        ([None, "a"], "lora", 12),
        ([None, None], "nolora", 6),
        (["a", "b", None, None], "lora", 12),
    ]
    for adapters, variant, heads in replays:
        batch = decode_batch(adapters)
        backend.init_forward_metadata_out_graph(batch)
        assert (flashinfer.last.heads, flashinfer.last.graph) == (heads, True)
        q = torch.randn(len(adapters), heads * HEAD_DIM, dtype=DTYPE)
        kv_cache = model_runner.token_to_kv_pool.get_kv_buffer(0)
        wrapper = captured[variant, len(adapters)]
        out = wrapper.forward(q.view(-1, heads, HEAD_DIM), kv_cache, sm_scale=SCALING).flatten(1)
        assert (out - expected(model_runner, q, LENGTHS, heads)).abs().max() < TOLERANCE


@pytest.mark.parametrize(
    ("group", "base_only", "paired"),
    [
        (1, "cuda cores", "cuda cores"),
        (2, "cuda cores", "tensor cores"),
        (3, "cuda cores", "tensor cores"),
        (5, "tensor cores", "tensor cores"),  # 10 a KV head: no CUDA-core kernel
        (7, "tensor cores", "tensor cores"),
        (12, "tensor cores", "tensor cores"),
    ],
)
def test_tensor_cores_are_chosen_by_the_group_that_is_planned(
    flashinfer: Module, group: int, base_only: str, paired: str
) -> None:
    from sglang.srt.model_executor.runner_utils.capture_mode import capture_lora_variant

    backend = backend_for(runner(group))
    backend.init_cuda_graph_state(max_bs=REQUESTS, max_num_tokens=REQUESTS)
    for adapters, variant, kind in (([None], "nolora", base_only), (["a"], "lora", paired)):
        backend.init_forward_metadata(decode_batch(adapters))
        assert flashinfer.last.kind == kind
        with capture_lora_variant(variant):
            backend.init_forward_metadata_out_graph(decode_batch([None]), in_capture=True)
        assert (flashinfer.last.kind, flashinfer.last.graph) == (kind, True)


def test_an_extends_decoder_rows_have_a_plan_of_their_own(flashinfer: Module) -> None:
    """Request 0: adapter, its last token. 1: none. 2: adapter, input logprobs of its last 3 of 4 new tokens."""
    from sglang.srt.model_executor.forward_batch_info import ForwardMode
    from sglang.srt.model_executor.forward_context import ForwardContext, forward_context

    from descant.sglang_ext.attention import Suffixes
    from descant.sglang_ext.batch import row_batch
    from descant.sglang_ext.rows import ExtendRows, paired_rows

    model_runner = runner(group=3)
    backend = backend_for(model_runner)
    batch = decode_batch(["a", None, "b"])
    new, prefixes = [2, 3, 4], [3, 0, 5]
    batch.forward_mode = ForwardMode.EXTEND
    batch.return_logprob, batch.extend_logprob_start_lens_cpu = True, [2, 3, 1]
    batch.extend_seq_lens, batch.extend_seq_lens_cpu = torch.tensor(new), new
    batch.extend_prefix_lens, batch.extend_prefix_lens_cpu = torch.tensor(prefixes), prefixes
    batch.input_ids = batch.positions = torch.arange(9)
    batch.out_cache_loc = torch.arange(9)
    batch.cross_attention_custom_mask = None
    plan = paired_rows(row_batch(batch))
    assert isinstance(plan, ExtendRows)

    backend.init_forward_metadata(batch)
    encoder = [(p.heads, p.q_starts, p.kv_starts) for p in flashinfer.plans]
    # Upstream's two halves: the new tokens among themselves, and their queries over the prefixes.
    assert encoder == [(6, [0, 2, 5, 9], [0, 2, 5, 9]), (6, [0, 2, 5, 9], [0, 3, 3, 8])]
    with forward_context(ForwardContext(attn_backend=backend)):
        suffixes = Suffixes(plan, batch, torch.device("cpu"))
    assert suffixes.backend is backend.suffixes
    decoder = flashinfer.last
    assert (decoder.kind, decoder.heads, decoder.kv_heads) == ("tensor cores", 6, KV_HEADS)
    assert (decoder.q_starts, decoder.kv_starts) == ([0, 1, 4], [0, 5, 14])  # the whole of each request's KV

    # The encoder rows' plan still stands after it.
    wrapper = backend.forward_metadata.prefill_wrappers[0]
    assert wrapper._qo_indptr_buf.tolist() == [0, 2, 5, 9]
    assert wrapper._paged_kv_indptr_buf.tolist() == [0, 3, 3, 8]

    q = torch.randn(4, 6 * HEAD_DIM, dtype=DTYPE)
    k, v = torch.randn(2, 4, KV_HEADS, HEAD_DIM, dtype=DTYPE)
    pool = [buffer.clone() for buffer in model_runner.token_to_kv_pool.get_kv_buffer(0)]
    out = suffixes.backend.forward_extend(q, k, v, layer(6), suffixes.batch, save_kv_cache=False)
    assert flashinfer.ragged == 0  # the pool has the new tokens' K and V, the encoder's
    for before, after in zip(pool, model_runner.token_to_kv_pool.get_kv_buffer(0), strict=True):
        assert torch.equal(before, after)
    heads = q.view(4, 6, HEAD_DIM)
    for request, rows in ((0, slice(0, 1)), (2, slice(1, 4))):
        slots = model_runner.req_to_token_pool.req_to_token[ROWS[request], : LENGTHS[request]].long()
        wanted = attention(heads[rows], pool[0][slots], pool[1][slots], SCALING, causal=True).flatten(1)
        assert (out[rows] - wanted).abs().max() < TOLERANCE


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"sliding_window_size": 16}, "the model has a sliding window"),
        ({"model_config": SimpleNamespace(is_encoder_decoder=True)}, "the model has cross-attention"),
        ({"kv_cache_dtype": torch.float8_e4m3fn}, "the KV cache is float8_e4m3fn and the model bfloat16"),
        ({"dtype": torch.float32, "kv_cache_dtype": torch.float32}, "FlashInfer has no kernel for float32"),
    ],
)
def test_what_it_cannot_serve_is_refused(flashinfer: Module, changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=f"^--attention-backend flashinfer cannot .*{reason}.*; use --attention-back"):
        backend_for(runner(2, **changes))


def test_speculative_decoding_and_context_parallelism_are_refused(flashinfer: Module) -> None:
    from sglang.srt.runtime_context import get_parallel
    from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

    with pytest.raises(ValueError, match="draft tokens of speculative decoding"):
        backend_for(runner(2, spec_algorithm=SpeculativeAlgorithm.EAGLE))
    with get_parallel().override(attn_dcp_size=2), pytest.raises(ValueError, match="context parallelism of decode"):
        backend_for(runner(2))


def test_a_kv_cache_that_upstream_cannot_read_is_refused(flashinfer: Module, monkeypatch: pytest.MonkeyPatch) -> None:
    """Upstream checks it for its own class only."""
    model_runner = runner(2)
    method = model_runner.token_to_kv_pool.get_kv_cache_quant_method()
    monkeypatch.setattr(type(method), "resolve_attention_access", lambda *_: None)
    with pytest.raises(ValueError, match="does not support prefill with flashinfer"):
        backend_for(model_runner)


def test_users_keep_its_name(flashinfer: Module) -> None:
    """`--attention-backend flashinfer` means this backend where rows are paired, and upstream's elsewhere."""
    from sglang.srt.runtime_context import get_context

    from descant.sglang_ext.attention_backends import build_backend
    from descant.sglang_ext.attention_backends.flashinfer import PairedFlashInferBackend

    def upstream(**_: Any) -> str:
        return "upstream's"

    model_runner = runner(2)
    paired = build_backend(upstream, model_runner=model_runner, backend_str="flashinfer", init_new_workspace=False)
    assert isinstance(paired, PairedFlashInferBackend)
    with get_context().override_server_args(kv_sharing="nonshared"):
        assert build_backend(upstream, model_runner=model_runner, backend_str="flashinfer") == "upstream's"


def test_upstreams_class_is_as_the_subclass_expects(flashinfer: Module) -> None:
    """What PairedFlashInferBackend overrides, calls and sets; another SGLang may name it otherwise."""
    from sglang.srt.layers.attention.flashinfer_backend import FlashInferAttnBackend

    signatures = {
        "init_forward_metadata": ["self", "forward_batch"],
        "init_forward_metadata_out_graph": ["self", "forward_batch", "in_capture"],
        "init_cuda_graph_state": ["self", "max_bs", "max_num_tokens", "kv_indices_buf"],
        "forward_decode": ["self", "q", "k", "v", "layer", "forward_batch", "save_kv_cache"],
        "forward_extend": ["self", "q", "k", "v", "layer", "forward_batch", "save_kv_cache"],
        "_check_kv_attention_access": ["self", "phase", "access"],
    }
    for name, parameters in signatures.items():
        assert list(inspect.signature(getattr(FlashInferAttnBackend, name)).parameters) == parameters, name
    upstream = FlashInferAttnBackend(runner(2))
    fields = {
        "prefill_kv_access", "decode_kv_access", "indices_updater_decode", "decode_wrappers", "decode_use_tensor_cores",
        "decode_backend", "workspace_buffer", "use_paged", "num_wrappers",
    }  # fmt: skip
    assert fields <= set(vars(upstream))
    assert {"num_qo_heads", "num_kv_heads"} <= set(vars(upstream.indices_updater_decode))
    upstream.init_cuda_graph_state(1, 1)
    assert len(upstream.cuda_graph_kv_indices) == len(upstream.decode_wrappers) == upstream.num_wrappers == 1
