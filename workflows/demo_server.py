"""`descant serve --demo`: the demo's model with its trained adapters, in a KV cache of a demo's size."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console

from descant.agents.shipped import shipped_adapters
from descant.runtime.checkpoint import MODEL_NAME, demo_checkpoint
from descant.runtime.errors import DescantError
from descant.runtime.serve import DEMO, HELP, names_model
from descant.workflows.serving import KV_TOKENS, MAX_REQUESTS


def demo_arguments(arguments: Sequence[str], console: Console) -> list[str]:
    """`arguments` with what --demo stands for; the user's own options, behind it, win.

    Raises:
        DescantError: they name a model too, or the demo's cannot be had.
    """
    rest = [argument for argument in arguments if argument != DEMO]
    if any(argument in HELP for argument in rest):
        return rest
    if names_model(rest) or "--lora-paths" in rest:
        raise DescantError(f"{DEMO} has its own model and adapters: leave it out, or --model-path and --lora-paths.")
    adapters = shipped_adapters()
    if adapters is None:
        raise DescantError("This installation lacks the trained adapters: install Descant again, whole.")
    model = demo_checkpoint(console)
    return [
        *("--model-path", str(model), "--served-model-name", MODEL_NAME),
        *("--lora-paths", *(f"{role}={folder}" for role, folder in adapters.items())),
        *("--max-total-tokens", str(KV_TOKENS), "--max-running-requests", str(MAX_REQUESTS)),
        *rest,
    ]
