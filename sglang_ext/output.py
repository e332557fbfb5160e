"""What sharing adds to responses and to /server_info."""

from __future__ import annotations

from typing import Any

from sglang.srt.managers.scheduler_components.output_streamer import SchedulerOutputStreamer

from descant.sglang_ext.active import active_scheme


class AgentOutputStreamer(SchedulerOutputStreamer):
    """Adds to `meta_info["cached_tokens_details"]` how many cached tokens another agent's request had written."""

    __slots__ = ()

    def get_cached_tokens_details(self, req: Any) -> dict[str, int | str]:
        details = SchedulerOutputStreamer.get_cached_tokens_details(self, req) or {"device": 0, "host": 0}
        return {**details, "cross_agent": self.tree_cache.ledger.settle(req)}


def streamer_class(result: type[SchedulerOutputStreamer], scheduler: Any) -> type[SchedulerOutputStreamer]:
    """After Scheduler.get_output_streamer_class."""
    return AgentOutputStreamer if active_scheme().shares_namespace else result


def add_totals(result: Any, controller: Any, *args: Any, **kwargs: Any) -> Any:
    """After SchedulerInternalStateController.get_internal_state, which /server_info shows."""
    if active_scheme().shares_namespace:
        result.internal_state["kv_sharing_totals"] = controller.scheduler.tree_cache.ledger.totals()
    return result
