"""The paired decode depends on shapes alone, and pairs where a "lora" graph is captured: what a CUDA graph needs."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from sglang.srt.layers.radix_attention import RadixAttention
from sglang.srt.model_executor.forward_batch_info import ForwardMode
from sglang.srt.model_executor.forward_context import ForwardContext, forward_context
from sglang.srt.model_executor.runner_utils.capture_mode import capture_lora_variant
from torch._subclasses.fake_tensor import FakeTensorMode

from descant.sglang_ext.attention import PairedAttention
from descant.sglang_ext.model import PairedForward
from descant.sglang_ext.schemes import scheme_named

HEADS, KV_HEADS, DIM = 4, 2, 16


class Backend:
    """Attends to nothing: each query comes back, times two."""

    def __init__(self) -> None:
        self.seen: list[tuple[torch.Size, torch.Size, int]] = []

    def forward_decode(self, q: Any, k: Any, v: Any, layer: Any, batch: Any, save_kv_cache: bool = True) -> Any:
        self.seen.append((q.shape, k.shape, layer.tp_q_head_num))
        return q * 2

    forward = forward_decode


class Inner(torch.nn.Module):
    """One layer, whose query, key and value are the token and the position."""

    def __init__(self) -> None:
        super().__init__()
        self.attn = RadixAttention(HEADS, DIM, DIM**-0.5, KV_HEADS, layer_id=0)

    def forward(self, input_ids: Any, positions: Any, forward_batch: Any, input_embeds: Any = None) -> Any:
        assert forward_batch.input_ids.shape == input_ids.shape  # layers look at either
        row = (input_ids * 1000 + positions).float()[:, None]
        q, k = row.expand(-1, HEADS * DIM).contiguous(), row.expand(-1, KV_HEADS * DIM).contiguous()
        return self.attn(q, k, k, forward_batch)


def _decode(adapters: Sequence[str | None]) -> tuple[Any, Backend]:
    """The hidden states of a decode of these requests, and the backend that it went through."""
    inner, backend = Inner(), Backend()
    inner.attn.forward = PairedAttention(inner.attn)
    inner.forward = PairedForward(inner, scheme_named("icarus"))
    ids, positions = torch.arange(len(adapters)), torch.arange(len(adapters)) + 5
    batch = SimpleNamespace(
        forward_mode=ForwardMode.DECODE, lora_ids=list(adapters), input_ids=ids, positions=positions
    )
    with forward_context(ForwardContext(attn_backend=backend)):
        hidden = inner(ids, positions, batch)
    assert batch.input_ids is ids  # what upstream does with its batch afterwards must see the requests
    assert not hasattr(batch, "paired")
    return hidden, backend


@pytest.mark.parametrize("adapters", [["a"], [None, "a", "b"]])
def test_every_request_answers_from_its_decoder_row(adapters: list[str | None]) -> None:
    hidden, backend = _decode(adapters)
    n = len(adapters)
    assert backend.seen == [((n, 2 * HEADS * DIM), (n, KV_HEADS, DIM), 2 * HEADS)]
    assert hidden[:, 0].tolist() == [2 * (1000 * i + i + 5) for i in range(n)]
    assert hidden.is_contiguous()


def test_a_batch_without_adapters_runs_upstreams_rows() -> None:
    _, backend = _decode([None, None])
    assert [heads for _, _, heads in backend.seen] == [HEADS]


@pytest.mark.parametrize(("variant", "heads"), [("lora", 2 * HEADS), ("nolora", HEADS)])
def test_what_each_of_the_two_graphs_holds(variant: str, heads: int) -> None:
    """At capture no request has an adapter; which graph it is decides."""
    with capture_lora_variant(variant):
        _, backend = _decode([None, None, None])
    assert [seen for _, _, seen in backend.seen] == [heads]


def test_no_value_is_read_on_the_host() -> None:
    """On tensors without values: whatever would wait for the device, or branch on a value, raises."""
    with FakeTensorMode():
        hidden, _ = _decode(["a", None])
    assert hidden.shape == (2, HEADS * DIM)


@pytest.mark.parametrize("more", [{"save_kv_cache": False}, {"sinks": 1}])
def test_a_model_that_asks_for_more_is_refused(more: dict[str, Any]) -> None:
    attention = PairedAttention(RadixAttention(HEADS, DIM, DIM**-0.5, KV_HEADS, layer_id=0))
    rows = torch.zeros(2, HEADS * DIM)
    batch = SimpleNamespace(forward_mode=ForwardMode.DECODE, paired=True)
    with pytest.raises(ValueError, match="which paired rows cannot follow; use --kv-sharing nonshared"):
        attention(rows, rows, rows, batch, **more)
