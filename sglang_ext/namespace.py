"""Who a request is booked under, and which radix namespace it is in."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import cache
from typing import Any

from descant.sglang_ext.active import active_scheme


@cache
def _signature(function: Callable[..., Any]) -> inspect.Signature:
    return inspect.signature(function)


def init_request(original: Callable[..., None], req: Any, *args: Any, **kwargs: Any) -> None:
    """Around Req.__init__, which would append the adapter's id to `extra_key`: under a sharing scheme it must not."""
    if not active_scheme().shares_namespace:
        original(req, *args, **kwargs)
        return
    call = _signature(original).bind(req, *args, **kwargs)
    lora_id = call.arguments.pop("lora_id", None)
    original(*call.args, **call.kwargs)
    req.lora_id = lora_id
    if active_scheme().pairs_rows and (reason := _unpairable(req)):
        req.set_finish_with_abort(reason)


def _unpairable(req: Any) -> str | None:
    """Why paired rows cannot answer this request, or None."""
    scheme = active_scheme().name
    if req.input_embeds is not None or req.positional_embed_overrides is not None:
        return f"Input embeddings cannot be used with --kv-sharing {scheme}; send token ids or text."
    if req.lora_id is not None and (req.token_indices_to_pool or req.multi_item_delimiter_indices):
        # They read logits inside the prompt, where an adapter has no decoder row.
        return f"Scoring inside a prompt cannot use an adapter with --kv-sharing {scheme}; ask for input logprobs."
    return None


def record_agent(original: Callable[..., None], scheduler: Any, req: Any, lora_name: str | None) -> None:
    """Around Scheduler._record_kv_event_lora_name, the one place that has the adapter's name.

    Upstream's own record, which labels a namespace's KV events with the adapter, would be wrong for a shared one.
    """
    if active_scheme().shares_namespace:
        req.agent = lora_name
    else:
        original(scheduler, req, lora_name)
