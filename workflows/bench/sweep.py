"""Running a benchmark: servers one after the other, and on each the cells that need it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from descant.agents.standin import standin_adapters
from descant.runtime.client import AsyncClient, Client
from descant.runtime.errors import DescantError
from descant.runtime.protocol import MISREAD, Call, foreign, model_info
from descant.runtime.server import Server
from descant.runtime.turn import Unreachable
from descant.workflows.bench.cells import Book, Cell, Key
from descant.workflows.bench.load import Row, run_load, sender
from descant.workflows.bench.predict.scheme import LINEAR
from descant.workflows.bench.recipe import Recipe
from descant.workflows.bench.search import next_cell
from descant.workflows.bench.vocabulary import Vocabulary
from descant.workflows.bench.watch import Watched, watching
from descant.workflows.bench.words import counted
from descant.workflows.ready import Served

SILENCE_S = 3600.0  # a request may wait long in the queue of a server that is past saturation
FLUSH_S = 30.0
DECODE_LOG_INTERVAL = 10  # the KV gauges are renewed so often; SGLang's own 40 decodes would hide a peak
FLUSH: Call[None] = Call("/flush_cache", {}, lambda _: None, "The server did not empty its cache", FLUSH_S)


@dataclass(frozen=True)
class Target:
    """A server to load. adapters: agent k's name. pid: of the root of its processes, None where it is not ours.
    check: raises DescantError with the reason if it is ours and has died; given what a client met, or None."""

    url: str
    adapters: Sequence[str]
    pid: int | None
    metrics: bool
    check: Callable[[DescantError | None], None] = lambda _: None


Deploy = Callable[[str, int], AbstractContextManager[Target]]  # by scheme and number of agents


def stand_ins(model: Path, scheme: str, agents: int) -> dict[str, Path]:
    """Untrained adapters of one rank: conventional ones, or without k_proj and v_proj what ICaRus can serve."""
    seeds = {f"agent-{number}": 201 + number for number in range(agents)}
    if scheme == "icarus":
        return standin_adapters(model, seeds)
    return standin_adapters(model, seeds, LINEAR)


def own_servers(model: Path, recipe: Recipe, lora_paths: Mapping[str, Path], console: Console) -> Deploy:
    """Servers of `model`, alike but for the scheme and its adapters.

    Args:
        lora_paths: adapters to serve under every scheme, the first of them as many as there are agents; stand-ins if
            there are none.
    """

    @contextmanager
    def deploy(scheme: str, agents: int) -> Iterator[Target]:
        adapters = dict(list(lora_paths.items())[:agents]) or stand_ins(model, scheme, agents)
        options = [
            *("--max-total-tokens", str(recipe.pool_tokens)),
            *("--max-running-requests", str(recipe.max_running)),
            # The base model takes a place, too: under icarus it runs in every batch.
            *("--max-loras-per-batch", str(agents + 1)),
            *("--decode-log-interval", str(DECODE_LOG_INTERVAL)),
            "--enable-metrics",
        ]
        with ExitStack() as stack:
            with console.status(f"Starting a server with --kv-sharing {scheme} and {counted(agents, 'agent')}"):
                server = stack.enter_context(Server(model, adapters, kv_sharing=scheme, options=options))
            yield Target(server.url, list(adapters), server.pid, True, server.check)

    return deploy


@dataclass(frozen=True)
class Running:
    """A server that someone else started. model: its folder. pool_tokens: of its KV cache. max_running: requests that
    it runs at once."""

    scheme: str
    model: Path
    pool_tokens: int
    max_running: int
    deploy: Deploy


def others_server(url: str, adapters: Sequence[str]) -> Running:
    """The server at `url`, whose `adapters` are the agents.

    Raises:
        DescantError: it cannot be reached, is none of SGLang's, or has not all the adapters.
    """
    with Client(url) as client:
        try:
            info = client.server_info()
        except Unreachable as error:  # its log is someone else's
            raise Unreachable(f"{str(error).removesuffix(': see its log.')}: is it running?") from error
        served = Served.by(client)
        model = Path(client.call(model_info())["model_path"])
    for name in adapters:
        served.check(name)
    try:
        scheme = str(info.get("kv_sharing", "nonshared"))  # SGLang without this plugin
        running = int(info["internal_states"][0]["effective_max_running_requests_per_dp"])
        pool = int(info["max_total_num_tokens"])
    except MISREAD as error:
        raise foreign(url, "its /server_info is of another form") from error

    @contextmanager
    def deploy(scheme: str, agents: int) -> Iterator[Target]:
        yield Target(url, adapters, None, bool(info.get("enable_metrics")))

    return Running(scheme, model, pool, running, deploy)


def sweep(
    recipe: Recipe,
    deploy: Deploy,
    vocabulary: Vocabulary,
    book: Book,
    console: Console,
    note: Callable[[str], None],
) -> list[Cell]:
    """Run all cells that the book lacks, and return those that failed now.

    A server serves the cells of one scheme, number of agents and repeat, each from an emptied cache; after a failure
    a new one is started.

    Raises:
        DescantError: a server does not start.
    """
    failed: list[Cell] = []
    key = _next(recipe, book)
    while key is not None:
        scheme, agents, repeat = key.scheme, key.agents, key.repeat
        with deploy(scheme, agents) as target:
            while key is not None and (key.scheme, key.agents, key.repeat) == (scheme, agents, repeat):
                if not console.is_terminal:  # where no status is seen
                    note(f"{_named(key)}: begins")
                begun = time.monotonic()
                cell = _run(key, recipe, target, vocabulary, console)
                book.add(cell)
                note(f"{_named(key)}: {_told(cell)} ({time.monotonic() - begun:.0f} s)")
                key = _next(recipe, book)
                if cell.error is not None:
                    failed.append(cell)
                    break
    return failed


def left(recipe: Recipe, book: Book) -> bool:
    """Whether a cell is to be run."""
    return _next(recipe, book) is not None


def _next(recipe: Recipe, book: Book) -> Key | None:
    return next_cell(
        recipe,
        {key: cell.measures["workflows_per_s"] if cell.error is None else None for key, cell in book.cells.items()},
    )


def _run(key: Key, recipe: Recipe, target: Target, vocabulary: Vocabulary, console: Console) -> Cell:
    """One cell, or why it is none."""
    with console.status(_named(key)) as status:
        ended = 0

        def on_end() -> None:
            nonlocal ended
            ended += 1
            status.update(f"{_named(key)}: {ended} of {recipe.workflows} workflows have ended")

        try:
            # uvloop, which SGLang makes the default where it is imported, has a clock that counts whole milliseconds.
            with asyncio.Runner(loop_factory=asyncio.SelectorEventLoop) as runner:
                rows, watched = runner.run(_load(key, recipe, target, vocabulary, on_end))
        except DescantError as error:
            return Cell(key, error=_why(error, target))
    return Cell(key, rows, watched)


def _why(error: DescantError, target: Target) -> str:
    """That the server has died says more than what its clients saw of it."""
    try:
        target.check(error)
    except DescantError as death:
        return str(death)
    return str(error)


async def _load(
    key: Key, recipe: Recipe, target: Target, vocabulary: Vocabulary, on_end: Callable[[], None]
) -> tuple[list[Row], Watched]:
    schedule = recipe.schedule(key.agents, key.rate, key.repeat)
    async with AsyncClient(target.url, timeout=SILENCE_S) as client:
        send = sender(client, target.adapters)
        for agent in range(key.agents):  # each adapter is read into its place before time counts
            await send(agent, vocabulary.draw(4, "warm-up"), 2)
        await _flush(client, target)
        async with watching(client, target.pid, target.metrics) as watched:
            rows = await run_load(schedule, send, vocabulary, recipe.seed + key.repeat, on_end)
        return rows, watched


async def _flush(client: AsyncClient, target: Target) -> None:
    """Empty the cache; the scheduler refuses for a moment after each answer."""
    deadline = time.monotonic() + FLUSH_S
    while True:
        try:
            return await client.call(FLUSH)
        except DescantError:
            target.check(None)
            if time.monotonic() > deadline:
                raise
            await asyncio.sleep(0.05)


def _named(key: Key) -> str:
    return f"{key.scheme}, {counted(key.agents, 'agent')}, {key.rate:g} workflows/s, repeat {key.repeat}"


def _told(cell: Cell) -> str:
    if cell.error is not None:
        return cell.error.splitlines()[0]
    found = cell.measures
    return (
        f"{found['workflows_per_s']:.3g} workflows/s, P95 {found['workflow_p95']:.2f} s a workflow, "
        f"{found['cached_share']:.0%} cached, {found['cross_agent_share']:.0%} from another agent"
    )
