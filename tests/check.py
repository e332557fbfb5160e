"""Assertions that hold a response of `/generate` against the reference."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from reference import Reference
from torch import Tensor

TOLERANCE = 1e-3  # |difference of log-probability|, in float32

Response = Mapping[str, Any]


def expected(reference: Reference, tokens: Sequence[int], adapter: str | None, scheme: str = "icarus") -> Tensor:
    """Log-probabilities [L, V] after each of `tokens` under `scheme`."""
    logprobs = reference.conventional if scheme == "nonshared" else reference.icarus
    return logprobs(tokens, adapter)


def output_is_exact(
    reference: Reference,
    prompt: Sequence[int],
    adapter: str | None,
    response: Response,
    *,
    temperature: float = 0.0,
    scheme: str = "icarus",
) -> None:
    """Every output token's log-probability is the reference's; at temperature 0 it is also the most likely token.

    Given the tokens that the engine chose, the reference is asked once for the whole sequence: where two tokens are
    equally likely within `TOLERANCE`, the engine may take either. The engine reports log-probabilities after scaling by
    the temperature. A request without `return_logprob` has its tokens checked alone.
    """
    output = response["output_ids"]
    assert output, f"{adapter}: the response has no output tokens: {response}"
    logits = expected(reference, [*prompt, *output], adapter, scheme)[len(prompt) - 1 : -1]
    scaled = (logits / (temperature or 1.0)).log_softmax(dim=-1)
    chosen = scaled[torch.arange(len(output)), output]
    if temperature == 0:
        behind = (scaled.max(dim=-1).values - chosen).max().item()
        assert behind <= TOLERANCE, (
            f"{adapter}: output {output} leaves the greedy path: a token is {behind:.4f} behind the most likely one"
        )
    reported = response["meta_info"].get("output_token_logprobs")
    if reported is not None:
        assert [entry[1] for entry in reported] == output
        _close([entry[0] for entry in reported], chosen, f"{adapter}: output log-probabilities")
    _others_are_exact(adapter, response, "output", scaled, skip=0)


def input_is_exact(
    reference: Reference,
    prompt: Sequence[int],
    adapter: str | None,
    response: Response,
    *,
    start: int,
    scheme: str = "icarus",
) -> None:
    """Input log-probabilities from `start` on, and the top and the named ones where asked for, are the reference's.

    Entry i tells of token `start + i` given all before it. Entry 0 is empty: position `start - 1` gives no logits.
    """
    meta = response["meta_info"]
    (_, first, _), *reported = meta["input_token_logprobs"]
    tokens = list(prompt[start:])
    assert [first, *(entry[1] for entry in reported)] == tokens
    logprobs = expected(reference, prompt, adapter, scheme)[start:-1]
    own = logprobs[torch.arange(len(reported)), tokens[1:]]
    _close([entry[0] for entry in reported], own, f"{adapter}: input log-probabilities from {start}")

    _others_are_exact(adapter, response, "input", logprobs, skip=1)


def _others_are_exact(adapter: str | None, response: Response, side: str, logprobs: Tensor, skip: int) -> None:
    """The most likely tokens and those named by id, where asked for, against `logprobs` [L, V]."""
    for key in (f"{side}_top_logprobs", f"{side}_token_ids_logprobs"):
        for row, entries in zip(logprobs, response["meta_info"].get(key, [])[skip:], strict=False):
            ids = [entry[1] for entry in entries]
            _close([entry[0] for entry in entries], row[ids], f"{adapter}: {key}")
            if "top" in key:
                _close([entry[0] for entry in entries], row.topk(len(ids)).values, f"{adapter}: {key}, the best ones")


def _close(reported: Sequence[float], wanted: Tensor, what: str) -> None:
    assert len(reported) == len(wanted), f"{what}: {len(reported)} reported, {len(wanted)} expected"
    gap = (torch.tensor(reported) - wanted).abs()
    worst = int(gap.argmax())
    assert gap[worst] <= TOLERANCE, (
        f"{what}: off by {gap[worst]:.4f} at entry {worst} of {len(wanted)}: "
        f"{reported[worst]:.4f}, and {wanted[worst]:.4f} is right"
    )
