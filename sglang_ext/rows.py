"""RowPlan: which rows one forward computes, and what each is for.

Upstream SGLang computes one row per new token. Under a scheme that pairs rows, a forward of n new tokens has n *encoder
rows* (adapter off; they alone write K and V) followed by m *decoder rows* (a request's adapter on; they write nothing
and read the encoder's K and V). This module is arithmetic on Python lists: it knows neither torch nor SGLang, so a plan
can be built, and tested, from the fields that every ForwardBatch copy keeps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class BatchShape:
    """What a plan is derived from: one forward's requests, in batch order.

    adapters: adapter id per request, None for the base model.
    new_tokens: tokens per request in this forward; all 1 at decode.
    logit_starts: first new token per request whose logits are wanted (new_tokens - 1 where only the last is).
    """

    adapters: tuple[str | None, ...]
    new_tokens: tuple[int, ...]
    logit_starts: tuple[int, ...]

    @classmethod
    def decode(cls, adapters: Sequence[str | None]) -> BatchShape:
        """One new token per request, its logits wanted."""
        ones = (1,) * len(adapters)
        return cls(tuple(adapters), ones, (0,) * len(adapters))

    @classmethod
    def extend(
        cls,
        adapters: Sequence[str | None],
        new_tokens: Sequence[int],
        logprob_starts: Sequence[int] | None,
    ) -> BatchShape:
        """An extend batch; `logprob_starts` (relative to the new tokens) is None unless input logprobs are asked for.

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
class RowPlan:
    """The rows of one paired forward: rows 0..n-1 are the encoder rows in token order, then the decoder rows.

    encoder_rows: n, the number of encoder rows (the batch's own tokens).
    decoder_tokens: for each decoder row, the token (= encoder row) at whose position it runs.
    decoder_counts: decoder rows per request (0 without an adapter); they repeat the last of the request's tokens.
    segments: the adapter of every row, run-length coded, in row order.
    """

    encoder_rows: int
    decoder_tokens: tuple[int, ...]
    decoder_counts: tuple[int, ...]
    segments: tuple[Segment, ...]

    @property
    def total_rows(self) -> int:
        return self.encoder_rows + len(self.decoder_tokens)


def paired_rows(shape: BatchShape) -> RowPlan | None:
    """The ICaRus plan: an encoder row per new token, a decoder row wherever an adapter's logits are wanted.

    None if no request of the batch has an adapter: its encoder rows are then all there is, as in upstream's forward.
    """
    if not any(shape.adapters):
        return None
    decoder_tokens: list[int] = []
    counts: list[int] = []
    segments = [Segment(None, sum(shape.new_tokens))]
    first = 0
    for adapter, length, start in zip(shape.adapters, shape.new_tokens, shape.logit_starts, strict=True):
        count = length - start if adapter is not None else 0
        counts.append(count)
        if adapter is not None and count > 0:
            decoder_tokens.extend(range(first + start, first + length))
            if segments[-1].adapter == adapter:
                segments[-1] = Segment(adapter, segments[-1].length + count)
            else:
                segments.append(Segment(adapter, count))
        first += length
    return RowPlan(first, tuple(decoder_tokens), tuple(counts), tuple(segments))
