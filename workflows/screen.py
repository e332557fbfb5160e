"""What the demo shows: turns as they stream, then what each cost."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import cycle
from typing import Any

from rich import box
from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from descant.workflows import events
from descant.workflows.state import TurnRecord

PALETTE = ("cyan", "green", "magenta", "blue", "bright_red", "bright_cyan")
TOOL = "tool"
_VISIBLE = dict.fromkeys((*range(9), *range(11, 32), *range(127, 160)), "�")
WIDE = 72  # columns that the table with its comparison needs

Column = tuple[str, list[str]]  # header, cells


class Screen:
    """Prints a run as it happens: who speaks, and all that is appended to the trajectory.

    Args:
        agents: names, in the order of their colours.
    """

    def __init__(self, console: Console, agents: Iterable[str]) -> None:
        self._console = console
        self._colours = colours(agents)
        self._indent = max(map(len, [*self._colours, TOOL])) + 2
        self._speaker: str | None = None
        self._at_start = True  # of a line

    def show(self, event: Mapping[str, Any]) -> None:
        """Print an event of `descant.workflows.events`."""
        match event["event"]:
            case events.TURN:
                self._speaks(event["agent"])
                self._write(event["cue"], "dim")
            case events.TEXT:
                self._write(event["text"], self._colours.get(event["agent"], ""))
            case events.WRITTEN if self._speaker is not None:
                self._write(event["text"], "dim")
            case events.WRITTEN:
                self._speaks(None)
                self._write(event["text"], "yellow")
            case events.TURN_END:
                self._speaker = None

    def end(self) -> None:
        """Close the line of a turn."""
        if not self._at_start:
            self._console.print()
            self._at_start = True

    def _speaks(self, agent: str | None) -> None:
        self.end()
        self._speaker = agent
        style = "yellow" if agent is None else self._colours.get(agent, "")
        self._print((TOOL if agent is None else agent).ljust(self._indent), f"bold {style}")

    def _write(self, text: str, style: str) -> None:
        for number, line in enumerate(text.split("\n")):
            if number:
                self.end()
            if line:
                if self._at_start and number:
                    self._print(" " * self._indent, "")
                self._print(line, style)

    def _print(self, text: str, style: str) -> None:
        # A piece at a time: the terminal wraps, since Rich does not know the column.
        self._console.print(Text(visible(text), style), end="", soft_wrap=True)
        self._at_start = False


def visible(text: str) -> str:
    """`text` with no control characters but tabs and line breaks, so that nobody's words steer the terminal."""
    return text.translate(_VISIBLE)


def colours(agents: Iterable[str]) -> dict[str, str]:
    """Each agent's colour."""
    return dict(zip(agents, cycle(PALETTE), strict=False))


def costs(turns: Sequence[TurnRecord], replayed: Sequence[TurnRecord] | None, width: int) -> Group:
    """One row a turn: what it read, what of it was cached, whose that was, and the time to its first token.

    Args:
        replayed: the same turns under `nonshared`, for comparison.
        width: columns of the terminal; in a narrow one the comparison goes below.
    """
    common: list[Column] = [
        ("turn", [str(number) for number in range(1, len(turns) + 1)]),
        ("agent", [turn["agent"] or "" for turn in turns]),
        ("prompt\ntokens", [str(turn["prompt_tokens"]) for turn in turns]),
    ]
    shared: list[Column] = [
        ("icarus\ncached", [str(turn["cached_tokens"]) for turn in turns]),
        ("from\nothers", [str(turn["cross_agent"]) for turn in turns]),
        ("icarus\nTTFT", [f"{turn['ttft']:.2f} s" for turn in turns]),
    ]
    alone: list[Column] = [
        ("nonshared\ncached", [str(turn["cached_tokens"]) for turn in replayed or ()]),
        ("nonshared\nTTFT", [f"{turn['ttft']:.2f} s" for turn in replayed or ()]),
    ]
    if not replayed:
        return Group(_table(common + shared))
    if width >= WIDE:
        return Group(_table(common + shared + alone))
    return Group(_table(common + shared), _table(common + alone))


def _table(columns: list[Column]) -> Table:
    shades = colours(dict.fromkeys(columns[1][1]))
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for header, _ in columns:
        table.add_column(header, justify="left" if header == "agent" else "right", no_wrap=True)
    for cells in zip(*(cells for _, cells in columns), strict=True):
        table.add_row(*(Text(cell, shades.get(cell, "")) for cell in cells))
    return table


def _prefilled(turns: Sequence[TurnRecord]) -> int:
    return sum(turn["prompt_tokens"] - turn["cached_tokens"] for turn in turns)


def totals(turns: Sequence[TurnRecord], replayed: Sequence[TurnRecord] | None) -> list[str]:
    """The sums under the table, as sentences."""
    prompt = sum(turn["prompt_tokens"] for turn in turns)
    crossed = sum(turn["cross_agent"] for turn in turns)
    lines = [
        "TTFT: time to first token. From others: cached tokens that another agent's request had put there.",
        f"Prompt tokens in all: {prompt}; {crossed} of them ({crossed / prompt:.0%}) were KV that another agent had "
        f"left in the cache.",
    ]
    if replayed:
        computed, computed_alone = (
            sum(turn["prompt_tokens"] - turn["cached_tokens"] for turn in run) for run in (turns, replayed)
        )
        waited, waited_alone = (sum(turn["ttft"] for turn in run) for run in (turns, replayed))
        lines += [
            f"Prefilled: {computed} tokens under icarus, {computed_alone} under nonshared "
            f"({computed_alone / computed:.1f} times as many).",
            f"Time to first token, all turns: {waited:.1f} s under icarus, {waited_alone:.1f} s under nonshared "
            f"({waited_alone / waited:.1f} times as long).",
        ]
    return lines
