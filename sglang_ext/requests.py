"""Requests that would bring the engine down are refused at the door: token ids that the model has no embedding for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from descant.sglang_ext.active import active_scheme


def check_request(original: Callable[..., Any], manager: Any, obj: Any, *args: Any, **kwargs: Any) -> Any:
    """Around TokenizerManager.generate_request, which every endpoint and the Engine call.

    Upstream looks an id up without a check: on the CPU one bad id raises in the model's forward and ends the server.

    Raises:
        ValueError: a request has an id that is no token of the model; HTTP endpoints answer it with a 400.
    """
    if active_scheme().shares_namespace and obj.input_ids is not None:
        check_ids(obj.input_ids, manager.model_config.vocab_size)
    return original(manager, obj, *args, **kwargs)


def check_ids(input_ids: Any, vocab_size: int) -> None:
    """Check one prompt's ids, or a batch of prompts.

    Raises:
        ValueError: something else than a list of ids in [0, vocab_size), or a list of such lists.
    """
    if not isinstance(input_ids, Sequence) or isinstance(input_ids, str):
        raise ValueError(f"input_ids must be a list of token ids, or a list of such lists, not {_shown(input_ids)}.")
    batch = input_ids if input_ids and isinstance(input_ids[0], Sequence) else [input_ids]
    for prompt in batch:
        if not isinstance(prompt, Sequence) or not set(map(type, prompt)) <= {int}:
            raise ValueError(f"input_ids must hold whole numbers only, not {_shown(prompt)}.")
        if prompt and not 0 <= min(prompt) <= max(prompt) < vocab_size:
            wrong = min(prompt) if min(prompt) < 0 else max(prompt)
            raise ValueError(f"Token id {wrong} is not in the model's vocabulary (0 to {vocab_size - 1}).")


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
