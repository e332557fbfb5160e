"""The command `descant ui`."""

from __future__ import annotations

from typing import Annotated

import typer

from descant.runtime.cli_graphs import Adapters, Model, ServerUrl, named
from descant.runtime.console import command, err
from descant.runtime.extras import require


@command
def ui(
    server: ServerUrl = None,
    model: Model = None,
    adapters: Adapters = None,
    places: Annotated[
        bool | None,
        typer.Option(
            help="Let plan-act-reflect be the graph of the shipped adapters, for questions about places; by default "
            "where this command starts them.",
            show_default=False,
        ),
    ] = None,
    host: Annotated[str, typer.Option(help="Address to listen at; there is no login.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 takes a free one.")] = 8080,
) -> None:
    """A page in the browser: ask, watch the agents take turns, and see what of the cache they share."""
    require("fastapi", "uvicorn")
    from descant.workflows.ui.serve import serve

    serve(err, server, model, named(adapters or ()), places, host, port)
