"""AgentRadixCache: upstream's radix cache in one namespace for all agents, with the ledger told of writes and reads."""

from __future__ import annotations

from typing import Any

import torch
from sglang.srt.mem_cache.registry import (
    TreeCacheBuildContext,
    create_unified_radix_cache,
    get_radix_cache_factory,
    register_radix_cache_backend,
)
from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache
from sglang.srt.runtime_context import get_observability, get_parallel

from descant.sglang_ext.ledger import Ledger
from descant.sglang_ext.server_args import RADIX_BACKEND


class AgentRadixCache(UnifiedRadixCache):
    """One tree whose nodes all agents read and extend. `extra_key` and `cache_salt` that callers set still separate."""

    def __init__(self, params: Any) -> None:
        super().__init__(params)
        allocator = params.token_to_kv_pool_allocator
        # Slot 0 is upstream's padding; a page more covers the last page's slots.
        slots = allocator.size + allocator.page_size + 1
        metrics = bool(get_observability().enable_metrics) and get_parallel().tp_rank == 0
        self.ledger = Ledger(slots, params.req_to_token_pool.req_to_token.device, metrics)

    def prefix_device_indices(self, req: Any) -> torch.Tensor:
        """Upstream asks for them once, when it admits a request that found a prefix."""
        slots = super().prefix_device_indices(req)
        self.ledger.reads(req, slots)
        return slots

    def checkpoint(self, req: Any, *, up_to: int, **kwargs: Any) -> None:
        """What lies between the tree's part and `up_to` the request has computed itself."""
        row = self.req_to_token_pool.req_to_token[req.kv.req_pool_idx]
        self.ledger.wrote(req, row[req.kv.cache_protected_len : up_to])
        super().checkpoint(req, up_to=up_to, **kwargs)


def _build(context: TreeCacheBuildContext) -> AgentRadixCache:
    return create_unified_radix_cache(context, cache_class=AgentRadixCache)


def register_cache() -> None:
    """Make AgentRadixCache known to --radix-cache-backend, once a process."""
    if get_radix_cache_factory(RADIX_BACKEND) is None:
        register_radix_cache_backend(RADIX_BACKEND, _build)
