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
    if active_scheme().pairs_rows and (req.input_embeds is not None or req.positional_embed_overrides is not None):
        req.set_finish_with_abort(
            f"Input embeddings cannot be used with --kv-sharing {active_scheme().name}; send token ids or text."
        )


def record_agent(original: Callable[..., None], scheduler: Any, req: Any, lora_name: str | None) -> None:
    """Around Scheduler._record_kv_event_lora_name, the one place that has the adapter's name.

    Upstream's own record, which labels a namespace's KV events with the adapter, would be wrong for a shared one.
    """
    if active_scheme().shares_namespace:
        req.agent = lora_name
    else:
        original(scheduler, req, lora_name)
