"""Requests that would bring the engine down are refused at the door: token ids that the model has no embedding for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from descant.sglang_ext.active import active_scheme


def check_request(manager: Any, obj: Any, input_ids: Any) -> None:
    """Before TokenizerManager._validate_one_request, which sees every prompt that comes in at any door.

    Upstream looks an id up without a check: on the CPU one bad id raises in the model's forward and ends the server.

    Raises:
        ValueError: the caller sent no ids, or one that is no token of the model; HTTP endpoints answer with a 400.
    """
    if not active_scheme().shares_namespace:
        return
    # Text may tokenize to nothing too; a session may supply the whole prompt.
    if input_ids is not None and len(input_ids) == 0 and not getattr(obj, "session_params", None):
        raise ValueError("The prompt is empty: send at least one token.")
    if obj.input_ids is not None:
        check_ids(obj.input_ids, manager.model_config.vocab_size)


def check_ids(input_ids: Any, vocab_size: int) -> None:
    """Check one prompt's ids.

    Raises:
        ValueError: something else than a list of whole numbers in [0, vocab_size).
    """
    if not isinstance(input_ids, Sequence) or isinstance(input_ids, str) or not set(map(type, input_ids)) <= {int}:
        raise ValueError(f"input_ids must be a list of token ids, whole numbers, not {_shown(input_ids)}.")
    if input_ids and not 0 <= min(input_ids) <= max(input_ids) < vocab_size:
        wrong = min(input_ids) if min(input_ids) < 0 else max(input_ids)
        raise ValueError(f"Token id {wrong} is not in the model's vocabulary (0 to {vocab_size - 1}).")


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
