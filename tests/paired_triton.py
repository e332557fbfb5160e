"""`TRITON_INTERPRET=1 python paired_triton.py`: paired attention through SGLang's Triton backend, on CPU tensors.

The backend is SGLang's class under ours, its pools, slot tables and metadata SGLang's too; only the runner around them
is a stand-in. Each case holds every row's attention, and what lies in the pool afterwards, against plain torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import torch
from sglang.srt.layers.attention import triton_backend
from sglang.srt.layers.radix_attention import RadixAttention
from sglang.srt.mem_cache.kv_index_translator import KVIndexTranslator
from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool, ReqToTokenPool
from sglang.srt.model_executor.forward_batch_info import ForwardMode
from sglang.srt.model_executor.forward_context import ForwardContext, forward_context

from descant.sglang_ext.attention import PairedAttention, Suffixes
from descant.sglang_ext.rows import ExtendBatch, ExtendRows, paired_rows

HEADS, KV_HEADS, DIM, LAYER = 6, 2, 16, 1  # three query heads a KV head
REQUESTS, CONTEXT, SLOTS = 8, 48, 500
TOLERANCE = 1e-5  # float32, sequences of up to 48


class World:
    """A pool in which every request's slots are scattered, a backend over it, and one layer's attention."""

    def __init__(self) -> None:
        self.generator = torch.Generator().manual_seed(7)
        requests = ReqToTokenPool(REQUESTS, CONTEXT, "cpu", enable_memory_saver=False)
        order = 1 + torch.randperm(SLOTS - 1, generator=self.generator)[: (REQUESTS + 1) * CONTEXT]
        requests.req_to_token[:] = order.view(REQUESTS + 1, CONTEXT).int()
        requests.req_to_token[0] = 0  # where padding rows point
        self.pool = MHATokenToKVPool(
            SLOTS, 1, torch.float32, KV_HEADS, DIM, LAYER + 1, "cpu", enable_memory_saver=False, enable_alt_stream=False
        )
        for buffer in (*self.pool.k_buffer, *self.pool.v_buffer):
            buffer.copy_(self.normal(*buffer.shape))
        self.table = requests.req_to_token
        self.translator = KVIndexTranslator(
            req_to_token=self.table,
            token_to_kv_pool_allocator=None,
            token_to_kv_pool=self.pool,
            page_size=1,
            device="cpu",
        )
        self.runner = SimpleNamespace(
            req_to_token_pool=requests,
            token_to_kv_pool=self.pool,
            token_to_kv_pool_allocator=None,
            kv_index_translator=self.translator,
            sliding_window_size=None,
            page_size=1,
            device="cpu",
            gpu_id=0,
            dtype=torch.float32,
            kv_cache_dtype=torch.float32,
            is_draft_worker=False,
            decode_num_tokens_per_req=lambda: 1,
            model_config=SimpleNamespace(
                attention_arch=None,
                hf_config=None,
                get_max_num_attention_heads=lambda: HEADS,
                get_num_kv_heads=lambda *_: KV_HEADS,
                v_head_dim=DIM,
                swa_v_head_dim=DIM,
                head_dim=DIM,
                context_len=CONTEXT,
                is_encoder_decoder=False,
            ),
        )
        from descant.sglang_ext.attention_backends.triton import PairedTritonBackend

        self.backend: Any = PairedTritonBackend(self.runner)
        self.layer = RadixAttention(HEADS, DIM, DIM**-0.5, KV_HEADS, LAYER)
        self.attention = PairedAttention(self.layer)

    def normal(self, *shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=self.generator)

    def qkv(self, rows: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        return self.normal(rows, HEADS * DIM), self.normal(rows, KV_HEADS * DIM), self.normal(rows, KV_HEADS * DIM)

    def slots(self, request: int, first: int, last: int) -> torch.Tensor:
        return self.table[request, first:last].long()

    def batch(self, mode: ForwardMode, requests: Sequence[int], lengths: Sequence[int], out: torch.Tensor) -> Any:
        """A ForwardBatch of `requests`, whose sequences have `lengths` with the new tokens, which go to slots `out`."""
        batch = SimpleNamespace(
            forward_mode=mode,
            batch_size=len(requests),
            req_pool_indices=torch.tensor(requests),
            seq_lens=torch.tensor(lengths),
            seq_lens_cpu=torch.tensor(lengths),
            seq_lens_sum=sum(lengths),
            out_cache_loc=out,
            out_cache_loc_is_physical=False,
            input_ids=torch.zeros_like(out),
            positions=torch.zeros_like(out),
            spec_info=None,
            encoder_lens=None,
            kv_loc_plan=None,
            mha_one_shot=False,
        )
        return batch

    def decode_batch(self, requests: Sequence[int], lengths: Sequence[int]) -> Any:
        new = [self.slots(request, length - 1, length) for request, length in zip(requests, lengths, strict=True)]
        return self.batch(ForwardMode.DECODE, requests, lengths, torch.cat(new))

    def attend(self, query: torch.Tensor, request: int, length: int) -> torch.Tensor:
        """One row [H * d] over the first `length` tokens of `request`, as they lie in the pool."""
        slots = self.slots(request, 0, length)
        k, v = (buffer[LAYER][slots].repeat_interleave(HEADS // KV_HEADS, 1) for buffer in self.buffers())
        scores = torch.einsum("hd,lhd->hl", query.view(HEADS, DIM), k) * DIM**-0.5
        return torch.einsum("hl,lhd->hd", scores.softmax(-1), v).flatten()

    def buffers(self) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        return self.pool.k_buffer, self.pool.v_buffer

    def run(self, batch: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        with forward_context(ForwardContext(attn_backend=self.backend)):
            return self.attention(q, k, v, batch)

    def holds(self, before: list[torch.Tensor], slots: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> None:
        """The layer's pool has `k` and `v` at `slots` and else, but for padding's slot 0, what it had."""
        for old, buffer, new in zip(before, (kv[LAYER] for kv in self.buffers()), (k, v), strict=True):
            wanted = old.clone()
            wanted[slots] = new.view(-1, KV_HEADS, DIM)
            assert torch.equal(buffer[1:], wanted[1:])

    def copy(self) -> list[torch.Tensor]:
        return [kv[LAYER].clone() for kv in self.buffers()]


def close(got: torch.Tensor, wanted: torch.Tensor, what: str) -> None:
    error = (got - wanted).abs().max().item()
    assert error < TOLERANCE, f"{what}: off by {error}"


def pairs_are_right(world: World, out: torch.Tensor, q: torch.Tensor, requests: list[int], lengths: list[int]) -> None:
    for row in range(2 * len(requests)):
        request, length = requests[row // 2], lengths[row // 2]
        close(out[row], world.attend(q[row], request, length), f"row {row}, request {request}, {length} tokens")


def eager_decode(world: World) -> None:
    requests, lengths = [3, 1, 6], [17, 1, 40]
    batch = world.decode_batch(requests, lengths)
    world.backend.init_forward_metadata(batch)

    q, k, v = world.qkv(3)
    before = world.copy()
    out = world.run(batch, q, k, v)  # unpaired, by upstream's kernels
    world.holds(before, batch.out_cache_loc, k, v)
    for row, (request, length) in enumerate(zip(requests, lengths, strict=True)):
        close(out[row], world.attend(q[row], request, length), f"unpaired row {row}")

    batch.paired = True
    q, k, v = world.qkv(6)
    before = world.copy()
    out = world.run(batch, q, k, v)
    world.holds(before, batch.out_cache_loc, k[0::2], v[0::2])
    pairs_are_right(world, out, q, requests, lengths)


def graph_decode(world: World) -> None:
    """Captured for four requests to come, replayed for three others, then for four.

    A graph is what ran at capture, with the tensors that it ran with: so a replay here runs the captured metadata
    again, after SGLang has planned for the new batch in its own way, and what it ran with must still be where it was.
    """
    backend, size = world.backend, 4
    backend.init_cuda_graph_state(size, size)
    static = world.batch(ForwardMode.DECODE, [0] * size, [1] * size, torch.zeros(size, dtype=torch.int64))
    backend.init_forward_metadata_out_graph(static, in_capture=True)
    captured, room = backend.forward_metadata, backend.graph_room.partials
    assert captured.kv_indptr.data_ptr() == backend.kv_indptr.data_ptr()
    static.paired = True
    q, k, v = world.qkv(2 * size)
    world.run(static, q, k, v)

    for requests, lengths in (([5, 2, 7], [9, 33, 2]), ([1, 2, 3, 4], [48, 1, 5, 20])):
        padding = size - len(requests)
        live = world.decode_batch(requests, lengths)
        static.req_pool_indices.copy_(torch.tensor(requests + [0] * padding))
        fill = backend.get_cuda_graph_seq_len_fill_value()
        static.seq_lens.copy_(torch.tensor(lengths + [fill] * padding))
        static.out_cache_loc.copy_(torch.cat([live.out_cache_loc, torch.zeros(padding, dtype=torch.int64)]))
        backend.init_forward_metadata_out_graph(static)
        assert backend.forward_metadata is captured
        assert backend.graph_room.partials is room
        for name, numbers in zip("qkv", world.qkv(2 * size), strict=True):
            {"q": q, "k": k, "v": v}[name].copy_(numbers)
        before = world.copy()
        out = world.run(static, q, k, v)
        count = len(requests)
        world.holds(before, live.out_cache_loc, k[0 : 2 * count : 2], v[0 : 2 * count : 2])
        assert out.isfinite().all()
        pairs_are_right(world, out, q, requests, lengths)


def extend(world: World) -> None:
    """Three requests, two with adapters, one of which wants the logits of its last three tokens."""
    requests, prefixes, new = [4, 2, 6], [11, 0, 30], [5, 7, 4]
    lengths = [a + b for a, b in zip(prefixes, new, strict=True)]
    out_slots = torch.cat([world.slots(r, a, b) for r, a, b in zip(requests, prefixes, lengths, strict=True)])
    batch = world.batch(ForwardMode.EXTEND, requests, lengths, out_slots)
    batch.extend_seq_lens, batch.extend_seq_lens_cpu = torch.tensor(new, dtype=torch.int32), new
    batch.extend_prefix_lens, batch.extend_prefix_lens_cpu = torch.tensor(prefixes, dtype=torch.int32), prefixes
    batch.extend_num_tokens = sum(new)
    plan = paired_rows(ExtendBatch.build(["act", None, "plan"], new, [5, 7, 1]))
    assert isinstance(plan, ExtendRows)

    world.backend.init_forward_metadata(batch)
    before_planning = world.backend.forward_metadata
    with forward_context(ForwardContext(attn_backend=world.backend)):
        suffixes = Suffixes(plan, batch, torch.device("cpu"))
    assert world.backend.forward_metadata is before_planning
    planned = world.backend.suffixes.forward_metadata
    assert planned.qo_indptr.tolist() == [0, 1, 4]
    assert planned.kv_indptr[:3].tolist() == [0, 15, 15 + 31]
    assert planned.kv_indices.tolist() == [*world.slots(4, 0, 15).tolist(), *world.slots(6, 0, 31).tolist()]
    assert planned.max_extend_len == 3
    assert before_planning.kv_indptr[:4].tolist() == [0, 11, 11, 41]
    assert before_planning.qo_indptr.tolist() == [0, 5, 12, 16]

    batch.paired, batch.suffixes = True, suffixes
    n = plan.encoder_rows
    q, k, v = world.qkv(n + len(plan.decoder_tokens))
    before = world.copy()
    out = world.run(batch, q, k, v)
    world.holds(before, out_slots, k[:n], v[:n])
    places: list[tuple[int, int]] = []
    for request, prefix, count in zip(requests, prefixes, new, strict=True):
        places += [(request, prefix + i + 1) for i in range(count)]
    for row, (request, length) in enumerate([*places, *(places[token] for token in plan.decoder_tokens)]):
        close(out[row], world.attend(q[row], request, length), f"row {row}, request {request}, {length} tokens")


def publish() -> None:
    """What a server of the defaults publishes, as far as the Triton backend reads it."""
    kernel = SimpleNamespace(
        enable_lean_attention=False, triton_attention_num_kv_splits=8, triton_attention_split_tile_size=None
    )
    settings = {
        "get_exec": SimpleNamespace(
            kernel=kernel,
            dllm=SimpleNamespace(dllm_algorithm=None),
            deterministic=SimpleNamespace(enable_deterministic_inference=False),
        ),
        "get_spec": SimpleNamespace(
            speculative_num_draft_tokens=None, speculative_num_steps=None, speculative_eagle_topk=None
        ),
        "get_parallel": SimpleNamespace(attn_dcp_size=1, attn_dcp_rank=0, attn_tp_size=1),
        "get_schedule": SimpleNamespace(chunked_prefill_size=8192),
        "cuda_graph_fully_disabled": False,
        "mambaish_config": None,
    }
    for name, value in settings.items():
        setattr(triton_backend, name, lambda *_, value=value: value)
    triton_backend.check_cuda_graph_backend = lambda *_: False


if __name__ == "__main__":
    publish()
    for case in (eager_decode, graph_decode, extend):
        case(World())
