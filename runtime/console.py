"""What all commands share: the two consoles, and how a command ends."""

from __future__ import annotations

import functools
import signal
from collections.abc import Callable
from typing import NoReturn, ParamSpec

import typer
from rich.console import Console

from descant.runtime.errors import DescantError
from descant.runtime.extras import not_installed, ours

P = ParamSpec("P")

out = Console()
err = Console(stderr=True)


def command(function: Callable[P, None]) -> Callable[P, None]:
    """A user's error is one sentence on stderr and status 1; Ctrl-C is status 130, SIGTERM 143, with order kept."""

    @functools.wraps(function)
    def guarded(*args: P.args, **kwargs: P.kwargs) -> None:
        signal.signal(signal.SIGTERM, _end)
        try:
            function(*args, **kwargs)
        except DescantError as error:
            _refuse(error)
        except ModuleNotFoundError as error:
            if not ours(error.name):
                raise
            _refuse(not_installed(str(error.name)))
        except KeyboardInterrupt:
            err.print("Interrupted.", style="yellow")
            raise typer.Exit(130) from None

    return guarded


def _refuse(error: DescantError) -> NoReturn:
    err.print(str(error), style="red", markup=False, highlight=False, soft_wrap=True)
    raise typer.Exit(1) from error


def note(text: str) -> None:
    """Tell on stderr what a user may want to know beside the output."""
    err.print(text, style="dim", markup=False, highlight=False, soft_wrap=True)


def _end(signum: int, frame: object) -> NoReturn:
    """Unwind, so that every `with` block closes what it opened."""
    raise SystemExit(128 + signum)
