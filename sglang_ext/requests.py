"""Requests that would bring the engine down are refused at the door.

Token ids that the model has no embedding for, more top log-probabilities than there are tokens, several adapters for
one prompt: upstream takes them unchecked, and its scheduler ends with an exception.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from descant.sglang_ext.active import active_scheme


def check_request(manager: Any, obj: Any, input_ids: Any) -> None:
    """Before TokenizerManager._validate_one_request, which sees every prompt that comes in at any door.

    Raises:
        ValueError: the request cannot be served; HTTP endpoints answer with a 400.
    """
    if not active_scheme().shares_namespace:
        return
    # Text may tokenize to nothing too; a session may supply the whole prompt.
    if input_ids is not None and len(input_ids) == 0 and not getattr(obj, "session_params", None):
        raise ValueError("The prompt is empty: send at least one token.")
    vocab_size = manager.model_config.vocab_size
    if obj.input_ids is not None:
        check_ids(obj.input_ids, vocab_size)
    if not isinstance(obj.lora_path, str | None):
        raise ValueError(f"lora_path must be one adapter's name for one prompt, not {_shown(obj.lora_path)}.")
    top = getattr(obj, "top_logprobs_num", None)
    if top is not None and not (isinstance(top, int) and 0 <= top <= vocab_size):
        raise ValueError(f"top_logprobs_num must be a whole number from 0 to {vocab_size}, not {_shown(top)}.")


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
