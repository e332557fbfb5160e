"""`descant ui`: the page, on a server that is running or one of its own."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import uvicorn
from rich.console import Console

from descant.agents.shipped import shipped_adapters
from descant.runtime.checkpoint import demo_checkpoint
from descant.runtime.errors import DescantError
from descant.workflows.run import checkpoints
from descant.workflows.serving import serving, standins
from descant.workflows.ui.app import create_app
from descant.workflows.ui.page import Page

LOOPBACK = ("127.0.0.1", "localhost", "::1")
ANYWHERE = ("0.0.0.0", "::")
CLOSING_S = 2  # for those who still watch


def serve(
    console: Console,
    server: str | None,
    model: Path | None,
    adapters: Mapping[str, str],
    places: bool | None,
    host: str,
    port: int,
) -> None:
    """Show the page until it is interrupted.

    Args:
        server: address of a running server; None starts one, with `model` (None: the demo's).
        adapters: as `Page` takes them. places: None where the page starts the demo's own adapters.
        port: 0 for a free one.

    Raises:
        DescantError: the port is taken, an adapter has no role, or the server does not start.
    """
    if server is not None and model is not None:
        raise DescantError("The server has its model already: give --model or --server, not both.")
    page = Page(server or "", adapters, bool(places))  # before a server is started for what cannot be shown
    with _listening(host, port) as listening, _reached(console, page, server, model, places) as page:
        shown = f"[{host}]" if ":" in host else host
        address = f"http://{'127.0.0.1' if host in ANYWHERE else shown}:{listening.getsockname()[1]}/"
        hosts = ("127.0.0.1", "localhost", "[::1]") if host in LOOPBACK else ("*",)
        app = create_app(page, checkpoints(), hosts)
        config = uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=CLOSING_S)
        console.print(f"Descant's page: {address}", highlight=False, soft_wrap=True)
        uvicorn.Server(config).run(sockets=[listening])


@contextmanager
def _reached(
    console: Console, page: Page, server: str | None, model: Path | None, places: bool | None
) -> Iterator[Page]:
    if server is not None:
        yield page
        return
    trained = shipped_adapters() if model is None else None
    checkpoint, adapters = standins(console, model) if trained is None else (demo_checkpoint(console), trained)
    with serving(console, checkpoint, adapters, "icarus") as client:
        yield Page(client.url, page.adapters, trained is not None if places is None else places)


@contextmanager
def _listening(host: str, port: int) -> Iterator[socket.socket]:
    try:
        listening = socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except (OSError, OverflowError) as error:
        raise DescantError(f"The page cannot listen at {host} port {port} ({error}): give another --port.") from error
    with listening:
        yield listening
