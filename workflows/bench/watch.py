"""What the server itself says and takes while it is under load: its KV pool, evictions, retractions, and its memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

import psutil

from descant.runtime.client import AsyncClient
from descant.runtime.protocol import INFO_PATIENCE_S, Call
from descant.runtime.turn import RequestError

INTERVAL_S = 1.0
# SGLang's names on /metrics. It renews the gauges at each prefill and at every --decode-log-interval-th decode.
USED, EVICTABLE = "sglang:kv_used_tokens", "sglang:kv_evictable_tokens"
EVICTED, RETRACTED = "sglang:evicted_tokens_total", "sglang:num_retracted_requests_total"
NAMES = (USED, EVICTABLE, EVICTED, RETRACTED)

METRICS = Call(
    "/metrics", None, lambda response: parse(response.text), "The server does not answer /metrics", INFO_PATIENCE_S
)


@dataclass(frozen=True)
class Sample:
    """KV slots at a moment, `at` seconds after the load began. running: of requests that run. cached: of prefixes that
    no running request uses, which may be evicted."""

    at: float
    running: int
    cached: int

    @property
    def held(self) -> int:
        """All that hold something."""
        return self.running + self.cached


@dataclass
class Watched:
    """What was seen.

    evicted, retracted: tokens and requests during the load; None if the server has no --enable-metrics.
    rss: at its peak, bytes, summed over its processes, so that pages they share count more than once; None where they
    run elsewhere.
    """

    samples: list[Sample] = field(default_factory=list)
    evicted: int | None = None
    retracted: int | None = None
    rss: int | None = None


def parse(text: str) -> dict[str, float]:
    """The metrics in NAMES out of Prometheus' text format, each summed over its labels; absent ones are left out."""
    found: dict[str, float] = {}
    for line in text.splitlines():
        name = line.split("{", 1)[0].split(" ", 1)[0]
        if name in NAMES:
            found[name] = found.get(name, 0.0) + float(line.rsplit(" ", 1)[1])
    return found


def resident(pid: int) -> int:
    """Resident memory of a process and all below it, in bytes."""
    total = 0
    with suppress(psutil.NoSuchProcess):
        root = psutil.Process(pid)
        for process in (root, *root.children(recursive=True)):
            with suppress(psutil.NoSuchProcess):
                total += process.memory_info().rss
    return total


@asynccontextmanager
async def watching(client: AsyncClient, pid: int | None, metrics: bool) -> AsyncIterator[Watched]:
    """Sample within the block, once a second, and once more at its end.

    Args:
        pid: the root of the server's processes, None where they run elsewhere.
        metrics: whether the server has --enable-metrics.

    Raises:
        RequestError: the server cannot be reached, at the beginning or at the end.
    """
    loop = asyncio.get_running_loop()
    begin = loop.time()
    watched = Watched()
    before = await client.call(METRICS) if metrics else {}

    async def look() -> Mapping[str, float]:
        if pid is not None:
            watched.rss = max(watched.rss or 0, resident(pid))
        if not metrics:
            return {}
        seen = await client.call(METRICS)
        watched.samples.append(Sample(loop.time() - begin, int(seen.get(USED, 0)), int(seen.get(EVICTABLE, 0))))
        return seen

    async def keep_looking() -> None:
        while True:
            with suppress(RequestError):  # the load's own requests say better what is wrong
                await look()
            await asyncio.sleep(INTERVAL_S)

    looking = asyncio.create_task(keep_looking())
    try:
        yield watched
    finally:
        looking.cancel()
        with suppress(asyncio.CancelledError):
            await looking
    after = await look()
    if metrics:
        watched.evicted = int(after.get(EVICTED, 0) - before.get(EVICTED, 0))
        watched.retracted = int(after.get(RETRACTED, 0) - before.get(RETRACTED, 0))
