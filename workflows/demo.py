"""`descant demo`: three agents on one shared KV cache, then the same trajectory without sharing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from descant.agents.lookup import Lookup
from descant.agents.standin import LABEL, standin_adapters
from descant.runtime.checkpoint import MODEL_NAME, demo_checkpoint
from descant.runtime.client import Client, Turn
from descant.runtime.server import Server
from descant.workflows.plan_act_reflect import plan_act_reflect
from descant.workflows.screen import Screen, costs, totals
from descant.workflows.trajectory import replay

# A KV cache for this one conversation: the default takes most of the machine's memory, and the time to allocate it.
SERVER_OPTIONS = ("--max-total-tokens", "16384", "--max-running-requests", "8")
CAVEAT = (
    "They make each agent's words its own but have learned no role, and the model is small: the answer may be wrong."
)


def run(console: Console, model: Path | None, question: str, turns: int, with_replay: bool) -> None:
    """Run the demo and print it.

    Args:
        model: folder of a checkpoint with a chat template; the demo's own model if None.
        turns: how many turns the agents take at most.
        with_replay: whether to replay the trajectory under `nonshared` for comparison.

    Raises:
        DescantError: something is missing, or the server failed.
    """
    lookup = Lookup()
    checkpoint = model or demo_checkpoint(console)
    with console.status(f"Making {LABEL} adapters"):
        adapters = standin_adapters(checkpoint)
    about = Table.grid(padding=(0, 2))
    about.add_column(style="bold")
    about.add_column()
    about.add_row("Model", Text(MODEL_NAME if model is None else str(model)))
    about.add_row("Agents", Text(f"{', '.join(adapters)}: {LABEL} LoRA adapters. {CAVEAT}"))
    about.add_row("Question", Text(f"{question}\n"))
    console.print(about)

    screen = Screen(console)
    with _serving(console, checkpoint, adapters, "icarus") as client:
        try:
            trajectory = plan_act_reflect(client, question, turns, lookup, screen)
        finally:
            screen.end()
    steps = trajectory.steps

    replayed: list[Turn] | None = None
    if with_replay:
        with (
            _serving(console, checkpoint, adapters, "nonshared") as client,
            console.status("Replaying the same turns, without sharing"),
        ):
            replayed = replay(client, steps)
    console.print()
    console.print(costs(steps, replayed, console.width))
    for line in totals(steps, replayed):
        console.print(line, highlight=False)


@contextmanager
def _serving(console: Console, model: Path, adapters: dict[str, Path], scheme: str) -> Iterator[Client]:
    with ExitStack() as stack:
        with console.status(f"Starting a server with --kv-sharing {scheme}"):
            server = stack.enter_context(Server(model, adapters, kv_sharing=scheme, options=SERVER_OPTIONS))
        yield stack.enter_context(Client(server.url))
