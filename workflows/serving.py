"""A server of one's own, for as long as a block: a model with the stand-in adapters."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

from rich.console import Console

from descant.agents.standin import LABEL, standin_adapters
from descant.runtime.checkpoint import demo_checkpoint
from descant.runtime.client import Client
from descant.runtime.server import Server
from descant.runtime.turn import RequestError

# A KV cache for one conversation: the default takes most of the machine's memory, and the time to allocate it.
KV_TOKENS = 16384
MAX_REQUESTS = 8


def standins(console: Console, model: Path | None) -> tuple[Path, dict[str, Path]]:
    """A checkpoint, the demo's own if None is given, and its stand-in adapters by role; made at the first call.

    Raises:
        DescantError: the model cannot be fetched, or is none.
    """
    checkpoint = model or demo_checkpoint(console)
    with console.status(f"Making {LABEL} adapters"):
        return checkpoint, standin_adapters(checkpoint)


@contextmanager
def serving(
    console: Console, model: Path, adapters: Mapping[str, Path], scheme: str, kv_tokens: int = KV_TOKENS
) -> Iterator[Client]:
    """A client of a server that runs as long as the block; if it dies, the block's error says so.

    Args:
        kv_tokens: how many tokens its KV cache holds.

    Raises:
        ServerError: it did not start, or died.
    """
    options = ("--max-total-tokens", str(kv_tokens), "--max-running-requests", str(MAX_REQUESTS))
    with ExitStack() as stack:
        with console.status(f"Starting a server with --kv-sharing {scheme}"):
            server = stack.enter_context(Server(model, adapters, kv_sharing=scheme, options=options))
        client = stack.enter_context(Client(server.url))
        try:
            yield client
        except RequestError as error:
            server.check(error)
            raise


@contextmanager
def server_or_own(server: str | None = None) -> Iterator[str]:
    """The address of a server with the adapters plan, act and reflect: `server`, or one that runs as long as the block.

    That one has the demo's model and the stand-in adapters; what it takes is told on stderr.

    Raises:
        DescantError: as `standins` and `serving`.
    """
    if server is not None:
        yield server
        return
    console = Console(stderr=True)
    with serving(console, *standins(console, None), "icarus") as client:
        yield client.url
