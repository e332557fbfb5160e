"""Which rows one forward computes, and what each is for.

Upstream SGLang computes one row per new token. Under a scheme that pairs rows, each new token has an *encoder row*
(adapter off; it alone writes K and V), and wherever an adapter's logits are wanted there is also a *decoder row* (a
request's adapter on; it writes nothing and reads the encoder's K and V). Decode and extend lay them out differently:

    decode, a pair a request:  [enc 0, dec 0, enc 1, dec 1, ...]         request i is rows 2i and 2i + 1
    extend, encoders first:    [enc 0 .. enc n-1 | dec 0 .. dec m-1]     row i is token i, then the decoder rows

This module is arithmetic on Python lists: it knows neither torch nor SGLang, so a plan can be built, and tested, from
the fields that every ForwardBatch copy keeps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class DecodeBatch:
    """One new token per request, its logits wanted.

    adapters: adapter id per request, None for the base model.
    adapted: whether to plan for adapters. Not always `any(adapters)`: a CUDA graph is captured for batches to come.
    """

    adapters: tuple[str | None, ...]
    adapted: bool


@dataclass(frozen=True)
class ExtendBatch:
    """Some new tokens per request, in batch order.

    adapters: adapter id per request, None for the base model.
    new_tokens: tokens per request in this forward.
    logit_starts: first new token per request whose logits are wanted (new_tokens - 1 where only the last is).
    """

    adapters: tuple[str | None, ...]
    new_tokens: tuple[int, ...]
    logit_starts: tuple[int, ...]

    @classmethod
    def build(
        cls,
        adapters: Sequence[str | None],
        new_tokens: Sequence[int],
        logprob_starts: Sequence[int] | None,
    ) -> ExtendBatch:
        """`logprob_starts` (relative to the new tokens) is None unless input logprobs are asked for.

        A start at or past the end still needs the last token's logits: they give the next token.
        """
        starts = logprob_starts if logprob_starts is not None else new_tokens
        return cls(
            tuple(adapters),
            tuple(new_tokens),
            tuple(min(start, n - 1) for start, n in zip(starts, new_tokens, strict=True)),
        )


@dataclass(frozen=True)
class Segment:
    """`length` consecutive rows computed under `adapter` (None: adapter off)."""

    adapter: str | None
    length: int


@dataclass(frozen=True)
class DecodeRows:
    """The rows of a paired decode: a pair for every request, whether it has an adapter or not.

    A request without one repeats its encoder row. So the rows depend on nothing but the number of requests, which is
    what a CUDA graph needs.
    """

    adapters: tuple[str | None, ...]

    @property
    def segments(self) -> tuple[Segment, ...]:
        """One row each."""
        return tuple(Segment(row, 1) for adapter in self.adapters for row in (None, adapter))


@dataclass(frozen=True)
class ExtendRows:
    """The rows of a paired extend: the encoder rows in token order, then the decoder rows.

    encoder_rows: n, the batch's own tokens.
    decoder_tokens: for each decoder row, the token (= encoder row) at whose position it runs.
    decoder_counts: decoder rows per request (0 without an adapter); they repeat the last of the request's tokens.
    segments: the adapter of every row, run-length coded, in row order.
    """

    encoder_rows: int
    decoder_tokens: tuple[int, ...]
    decoder_counts: tuple[int, ...]
    segments: tuple[Segment, ...]


RowBatch = DecodeBatch | ExtendBatch
RowPlan = DecodeRows | ExtendRows


def paired_rows(batch: RowBatch) -> RowPlan | None:
    """The ICaRus plan; None if no request has an adapter: upstream's rows, encoder rows all, are then all there is."""
    if isinstance(batch, DecodeBatch):
        return DecodeRows(batch.adapters) if batch.adapted else None
    return _extend_rows(batch) if any(batch.adapters) else None


def _extend_rows(batch: ExtendBatch) -> ExtendRows:
    decoder_tokens: list[int] = []
    counts: list[int] = []
    segments = [Segment(None, sum(batch.new_tokens))]
    first = 0
    for adapter, length, start in zip(batch.adapters, batch.new_tokens, batch.logit_starts, strict=True):
        count = length - start if adapter is not None else 0
        counts.append(count)
        if adapter is not None and count > 0:
            decoder_tokens.extend(range(first + start, first + length))
            if segments[-1].adapter == adapter:
                segments[-1] = Segment(adapter, segments[-1].length + count)
            else:
                segments.append(Segment(adapter, count))
        first += length
    return ExtendRows(first, tuple(decoder_tokens), tuple(counts), tuple(segments))
