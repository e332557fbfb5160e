"""The KV pool with its radix cache, at the grain of trajectories: counts of tokens instead of token ids.

Why counts are exact. Within a workflow every prompt continues all that was there before it, so whatever a namespace
holds of a workflow is one path of the radix tree. It grows at its end, it is evicted leaf by leaf from its end, and so
it is a prefix of the trajectory at all times: its length says all. A prompt is longer than any prefix that was cached
before it, so a match never ends inside a node, and touches, or locks, the whole path at once: the path has one time of
last use and one lock. Paths of different workflows meet at the root alone, as their tokens are random (two may begin
with the same token by chance: one token of thousands). tests/test_bench_predict.py holds this against SGLang's tree.

What eviction needs beside the length is where nodes end, since a leaf goes as a whole: a node ends where a request was
checkpointed (after each chunk, at the end of its prompt, at its end), and nowhere else.
"""

from __future__ import annotations

import heapq
from collections.abc import Hashable
from dataclasses import dataclass, field


@dataclass
class _Path:
    """A workflow's prefix in a namespace: its nodes, from the root on, as (tokens, the agent that wrote them)."""

    nodes: list[tuple[int, int]] = field(default_factory=list)
    tokens: int = 0
    locked: bool = False
    used: int = 0


class Pool:
    """`capacity` tokens, each free, a request's own, or a path's. Page size 1; LRU over leaves; locked paths stay."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.free = capacity
        self.evictable = 0
        self.evicted = 0
        self.paths: dict[Hashable, _Path] = {}
        self._clock = 0
        self._unlocked: list[tuple[int, Hashable]] = []  # a heap of (last use, path); stale entries are passed over

    @property
    def room(self) -> int:
        """Tokens that can be had, by eviction where nothing is free."""
        return self.free + self.evictable

    def match(self, key: Hashable, reader: int) -> tuple[int, int]:
        """Tokens cached at `key`, and how many of them another agent than `reader` wrote; they were used now."""
        path = self.paths.get(key)
        if path is None:
            return 0, 0
        self._use(key, path)
        return path.tokens, sum(tokens for tokens, writer in path.nodes if writer != reader)

    def touch(self, key: Hashable) -> None:
        """What is at `key` was used now."""
        if key in self.paths:
            self._use(key, self.paths[key])

    def lock(self, key: Hashable) -> None:
        """Keep what is at `key` from eviction."""
        path = self.paths.setdefault(key, _Path())
        assert not path.locked, f"two requests at {key}: a workflow's turns follow one another"
        path.locked = True
        self.evictable -= path.tokens

    def unlock(self, key: Hashable) -> None:
        path = self.paths[key]
        path.locked = False
        self.evictable += path.tokens
        if path.tokens:
            heapq.heappush(self._unlocked, (path.used, key))
        else:
            del self.paths[key]

    def allocate(self, tokens: int) -> None:
        """Give a request `tokens` of its own, evicting leaves that were used least recently."""
        while self.free < tokens:
            self._evict_leaf()
        self.free -= tokens

    def checkpoint(self, key: Hashable, length: int, writer: int) -> None:
        """The request that locked `key` hands the tree its own tokens up to `length` of the trajectory, as a node."""
        path = self.paths[key]
        assert path.locked
        if length > path.tokens:
            path.nodes.append((length - path.tokens, writer))
            path.tokens = length
        self._use(key, path)

    def release(self, tokens: int) -> None:
        """A request gives back tokens of its own that it did not hand over."""
        self.free += tokens

    def _use(self, key: Hashable, path: _Path) -> None:
        self._clock += 1
        path.used = self._clock
        if not path.locked:
            heapq.heappush(self._unlocked, (path.used, key))

    def _evict_leaf(self) -> None:
        while True:
            used, key = heapq.heappop(self._unlocked)
            path = self.paths.get(key)
            if path is not None and not path.locked and path.used == used:
                break
        tokens, _ = path.nodes.pop()
        path.tokens -= tokens
        self.free += tokens
        self.evictable -= tokens
        self.evicted += tokens
        if path.nodes:
            heapq.heappush(self._unlocked, (used, key))
        else:
            del self.paths[key]
