"""`descant serve`: `sglang serve` with this plugin's defaults in front of the user's own options."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from descant.runtime.api_key import api_key
from descant.runtime.errors import DescantError

# What an agent server wants and SGLang leaves off: sharing, cached token counts in OpenAI-style answers, /metrics.
DEFAULTS = (("--kv-sharing", "icarus"), ("--enable-cache-report",), ("--enable-metrics",))
# With no --lora-paths SGLang must be told for what adapters, loaded later, to keep room.
LATER_ADAPTERS = (
    ("--enable-lora",),
    ("--max-lora-rank", "32"),
    ("--lora-target-modules", "q_proj", "o_proj", "gate_proj", "up_proj", "down_proj"),
)
HELP = ("-h", "--help")
MODEL = ("--model-path", "--model")
DEMO = "--demo"
API_KEY = "--api-key"


def added_options(arguments: Sequence[str]) -> list[str]:
    """The options that `descant serve` adds to a user's: those that neither the line nor its --config names."""
    given = {argument.split("=", 1)[0] for argument in arguments} | _config_options(arguments)
    wanted = [*DEFAULTS, ("--enable-lora",)] if "--lora-paths" in given else [*DEFAULTS, *LATER_ADAPTERS]
    return [word for option in wanted if option[0] not in given for word in option]


def serve_arguments(arguments: Sequence[str]) -> list[str]:
    """The whole line for `sglang serve`: ours before the user's, so that argparse lets a later spelling win.

    A model path in first place stays there: `sglang serve MODEL` looks for it nowhere else.

    Raises:
        DescantError: no model is named where `sglang serve` looks for one, which is not in a --config file.
    """
    if any(argument in HELP for argument in arguments):
        return list(arguments)
    if not names_model(arguments):
        raise DescantError(
            f"Name the model to serve on the command line: descant serve --model-path BASE, or {DEMO} for the demo's."
        )
    model = list(arguments[:1]) if arguments and not arguments[0].startswith("-") else []
    return [*model, *added_options(arguments), *_key(arguments), *arguments[len(model) :]]


def _key(arguments: Sequence[str]) -> list[str]:
    """Not among the `added_options`, which are printed."""
    given = any(argument.split("=", 1)[0] == API_KEY for argument in arguments) or API_KEY in _config_options(arguments)
    key = None if given else api_key()
    return [API_KEY, key] if key else []


def names_model(arguments: Sequence[str]) -> bool:
    if arguments and not arguments[0].startswith("-"):
        return True
    joined = any(argument.startswith(tuple(f"{option}=" for option in MODEL)) for argument in arguments)
    return joined or any(argument in MODEL for argument in arguments[:-1])


def _config_options(arguments: Sequence[str]) -> set[str]:
    """The options in the file that --config names; SGLang itself reports a file that is missing or malformed."""
    if "--config" not in arguments[:-1]:
        return set()
    import yaml  # type: ignore[import-untyped]

    try:
        settings = yaml.safe_load(Path(arguments[list(arguments).index("--config") + 1]).read_text())
    except (OSError, yaml.YAMLError):
        return set()
    return {f"--{str(key).replace('_', '-')}" for key in settings} if isinstance(settings, dict) else set()
