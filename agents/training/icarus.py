"""The forwards that adapters are trained with, over samples packed in one row.

ICaRus (arXiv 2603.13281, equations 4 and 5) takes two passes. The base model, adapters off and without gradient, reads
every token and yields each layer's K and V as attention gets them: after the rotation, and after any norm on them. The
adapted model then runs on nothing but the rows that the loss counts: a decoder row attends to the *encoder's* K and V
up to its own position, never to another decoder row, so the rest of the sequence adds nothing to its gradient. That is
exact, and a role that speaks a fifth of the tokens is adapted on a fifth of the rows.

What all samples begin with alike, such as a workflow's instructions, the frozen base model reads once a run.

Both passes go through Transformers' attention interface, so that any model class which uses it can be trained. Samples
share no key: each attends within its own segment of the row, and there is no padding that could be attended to.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, PretrainedConfig

from descant.agents.training.data import Sample
from descant.runtime.errors import DescantError

ATTENTION = "descant_training"  # the name to load a model under, as its attn_implementation
Batch = Mapping[str, Tensor]
KV = dict[int, tuple[Tensor, Tensor]]  # K and V by layer
SHORTEST_PREFIX = 16  # tokens


def pack(samples: Sequence[Sample]) -> dict[str, Tensor]:
    """Lay samples behind one another in a row of T tokens, M of which are rows of the loss.

    Returns:
        input_ids and position_ids [1, T], positions from 0 in each sample; lengths [N] of the samples; rows [M],
        ascending indices into the row; and their targets [M], under the two names that Trainer counts them by.
    """
    lengths = [len(sample.ids) for sample in samples]
    starts = torch.tensor([0, *lengths]).cumsum(0).tolist()
    targets = torch.tensor([target for sample in samples for target in sample.targets])
    return {
        "input_ids": torch.tensor([[token for sample in samples for token in sample.ids]]),
        "position_ids": torch.cat([torch.arange(length) for length in lengths])[None],
        "lengths": torch.tensor(lengths),
        "rows": torch.tensor(
            [start + row for start, sample in zip(starts, samples, strict=False) for row in sample.rows]
        ),
        "labels": targets,
        "shift_labels": targets,
    }


@dataclass(frozen=True)
class Segment:
    """What one sample's queries may see: of the row's keys [begin, end) those in `mask` [M, L], else causal."""

    queries: slice
    keys: slice
    mask: Tensor | None = None


EVERYTHING = Segment(slice(None), slice(None))


@dataclass
class Prefix:
    """P tokens that every sample begins with, and, once they are read, each layer's K and V [1, Hkv, P, d] of them."""

    tokens: Sequence[int] = ()
    kv: KV = field(default_factory=dict)

    @classmethod
    def of(cls, samples: Sequence[Sample]) -> Prefix:
        """The longest one, short of a whole sample; none if it is too short to be worth its masks."""
        first, last = min(sample.ids for sample in samples), max(sample.ids for sample in samples)
        most = min(len(sample.ids) for sample in samples) - 1
        same = next((i for i in range(most) if first[i] != last[i]), most)
        return cls(first[:same] if same >= SHORTEST_PREFIX else ())


@dataclass
class Reading:
    """Whose K and V a pass attends to.

    encoder: by layer, K and V [1, Hkv, T, d] of the base model: filled by its own pass, read by the adapted one. None:
        each pass reads what it wrote itself, as conventional LoRA does.
    prefix: by layer, K and V that stand before those of every segment.
    """

    segments: Sequence[Segment]
    encoder: KV | None = None
    prefix: KV = field(default_factory=dict)
    writes: bool = False


def _attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    scaling: float,
    *,
    reading: Reading,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """Attention within segments: query [1, H, M, d], key and value [1, Hkv, T, d] -> [1, M, H, d].

    A function of its arguments alone, so that gradient checkpointing may call it again.
    """
    if softcap is not None or s_aux is not None:
        raise DescantError(f"{type(module).__name__} caps scores or has sinks, which descant train does not compute.")
    layer = int(module.layer_idx)
    if reading.encoder is not None:
        if reading.writes:
            reading.encoder[layer] = key, value
        else:
            key, value = reading.encoder[layer]

    def seen(written: Tensor, part: int, keys: slice) -> Tensor:
        """K (part 0) or V (1) of a segment."""
        own = written[:, :, keys]
        return torch.cat((reading.prefix[layer][part], own), dim=2) if reading.prefix else own

    parts = [
        scaled_dot_product_attention(
            query[:, :, segment.queries],
            seen(key, 0, segment.keys),
            seen(value, 1, segment.keys),
            attn_mask=segment.mask,
            is_causal=segment.mask is None,
            scale=scaling,
            enable_gqa=True,
        )
        for segment in reading.segments
    ]
    return torch.cat(parts, dim=2).transpose(1, 2).contiguous(), None


AttentionInterface.register(ATTENTION, _attention)


def logits(model: Any, batch: Batch, method: str, prefix: Prefix | None = None) -> Tensor:
    """Logits [M, V] of the loss's rows: what each of them says is the next token.

    Args:
        model: a PeftModel over a model that was loaded with `attn_implementation=ATTENTION`.
        method: "icarus", or "lora" for the conventional forward, in which the adapted model writes K and V as well.
        prefix: what all samples begin with; it is read at its first use. Only icarus can use it.
    """
    tokens, positions, rows, lengths = (batch[name] for name in ("input_ids", "position_ids", "rows", "lengths"))
    if method == "lora":
        causal = [Segment(span, span) for span in _spans(lengths)]
        return model(
            input_ids=tokens, position_ids=positions, use_cache=False, logits_to_keep=rows, reading=Reading(causal)
        ).logits[0]
    prefix = prefix or Prefix()
    if prefix.tokens and not prefix.kv:
        ids = tokens.new_tensor([prefix.tokens])
        _encode(model, ids, torch.arange(ids.shape[1], device=ids.device)[None], Reading([EVERYTHING], prefix.kv))
    length = len(prefix.tokens)
    new = (positions[0] >= length).nonzero()[:, 0]
    spans = _spans(lengths - length)
    own = positions[:, new]
    encoder: KV = {}
    segments = [
        Segment(span, span, _upto(own[0, span], length + span.stop - span.start) if length else None) for span in spans
    ]
    _encode(model, tokens[:, new], own, Reading(segments, encoder, prefix.kv))
    return model(
        input_ids=tokens[:, rows],
        position_ids=positions[:, rows],
        use_cache=False,
        reading=Reading(_decoder_segments(spans, positions[0], rows, lengths, length), encoder, prefix.kv),
    ).logits[0]


def _encode(model: Any, tokens: Tensor, positions: Tensor, reading: Reading) -> None:
    """Fill `reading.encoder` with the base model's K and V of `tokens` [1, T]."""
    reading.writes = True
    with _base(model), torch.no_grad():
        model(input_ids=tokens, position_ids=positions, use_cache=False, logits_to_keep=1, reading=reading)


@contextmanager
def _base(model: Any) -> Iterator[None]:
    """The model as the server runs the encoder: no adapter, no dropout."""
    training = model.training
    model.eval()
    model.base_model.disable_adapter_layers()
    try:
        yield
    finally:
        model.base_model.enable_adapter_layers()
        model.train(training)


def _spans(lengths: Tensor) -> list[slice]:
    ends = lengths.cumsum(0).tolist()
    return [slice(end - length, end) for end, length in zip(ends, lengths.tolist(), strict=True)]


def _decoder_segments(
    keys: Sequence[slice], positions: Tensor, rows: Tensor, lengths: Tensor, prefix: int
) -> list[Segment]:
    """For each sample its rows of the loss, which see the keys up to their own position."""
    edges = torch.searchsorted(rows, torch.cat((lengths.new_zeros(1), lengths.cumsum(0)))).tolist()
    own = positions[rows]
    return [
        Segment(slice(begin, end), span, _upto(own[begin:end], prefix + span.stop - span.start))
        for span, (begin, end) in zip(keys, pairwise(edges), strict=True)
    ]


def _upto(positions: Tensor, keys: int) -> Tensor:
    """Mask [M, keys]: queries at `positions` [M] see the keys at positions up to their own."""
    return positions[:, None] >= torch.arange(keys, device=positions.device)


def check_model(model: Any, longest: int) -> None:
    """Refuse a model whose attention is not the one computed here.

    Args:
        longest: tokens of the longest sample.

    Raises:
        DescantError: one sentence that says why.
    """
    name, config = type(model).__name__, model.config.get_text_config()
    if not getattr(model, "_supports_attention_backend", False):
        raise DescantError(f"{name} does not use Transformers' attention interface: descant train cannot train it.")
    kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
    if strange := kinds - {"full_attention", "sliding_attention"}:
        raise DescantError(f"{name} has layers of {', '.join(sorted(strange))}, which descant train does not compute.")
    window = _window(config, kinds)
    if window is not None and longest > window:
        raise DescantError(
            f"{name} attends to a window of {window} tokens and the longest sample has {longest}: "
            f"give --max-length {window}."
        )


def _window(config: PretrainedConfig, kinds: set[str]) -> int | None:
    """The tokens that the narrowest layer attends to; None if there is no limit."""
    if getattr(config, "layer_types", None) and "sliding_attention" not in kinds:
        return None
    return getattr(config, "sliding_window", None)
