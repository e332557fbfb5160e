"""What the demo shows: turns as they stream, then what each cost."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from descant.runtime.client import Turn
from descant.workflows.trajectory import Step

COLOURS = {"plan": "cyan", "act": "green", "reflect": "magenta"}
WIDE = 72  # columns that the table with its comparison needs
LABEL_WIDTH = max(map(len, COLOURS)) + 2

Column = tuple[str, list[str]]  # header, cells


class Screen:
    """Prints a run as it happens: an agent's name and cue, then its words as they come."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._colour = ""
        self._open = False

    def turn_starts(self, agent: str, cue: str) -> None:
        self.end()
        self._colour = COLOURS[agent]
        self._write(agent.ljust(LABEL_WIDTH), f"bold {self._colour}")
        self._write(cue, "dim")
        self._open = True

    def agent_says(self, text: str) -> None:
        self._write(text, self._colour)

    def tool_says(self, observation: str) -> None:
        self.end()
        self._write("tool".ljust(LABEL_WIDTH), "bold yellow")
        self._write("Observation: ", "dim")
        self._write(f"{observation}\n", "yellow")

    def end(self) -> None:
        """Close the line of a turn."""
        if self._open:
            self._console.print()
            self._open = False

    def _write(self, text: str, style: str) -> None:
        # A piece at a time: the terminal wraps, since Rich does not know the column.
        self._console.print(Text(text, style), end="", soft_wrap=True)


def costs(steps: Sequence[Step], replayed: Sequence[Turn] | None, width: int) -> Group:
    """One row a turn: what it read, what of it was cached, whose that was, and the time to its first token.

    Args:
        replayed: the same turns under `nonshared`, for comparison.
        width: columns of the terminal; in a narrow one the comparison goes below.
    """
    turns = [step.turn for step in steps]
    common: list[Column] = [
        ("turn", [str(number) for number in range(1, len(steps) + 1)]),
        ("agent", [step.agent for step in steps]),
        ("prompt\ntokens", [str(turn.prompt_tokens) for turn in turns]),
    ]
    shared: list[Column] = [
        ("icarus\ncached", [str(turn.cached_tokens) for turn in turns]),
        ("from\nothers", [str(turn.cross_agent) for turn in turns]),
        ("icarus\nTTFT", [f"{turn.ttft:.2f} s" for turn in turns]),
    ]
    alone: list[Column] = [
        ("nonshared\ncached", [str(turn.cached_tokens) for turn in replayed or ()]),
        ("nonshared\nTTFT", [f"{turn.ttft:.2f} s" for turn in replayed or ()]),
    ]
    if not replayed:
        return Group(_table(common + shared))
    if width >= WIDE:
        return Group(_table(common + shared + alone))
    return Group(_table(common + shared), _table(common + alone))


def _table(columns: list[Column]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for header, _ in columns:
        table.add_column(header, justify="left" if header == "agent" else "right", no_wrap=True)
    for cells in zip(*(cells for _, cells in columns), strict=True):
        table.add_row(*(Text(cell, COLOURS.get(cell, "")) for cell in cells))
    return table


def totals(steps: Sequence[Step], replayed: Sequence[Turn] | None) -> list[str]:
    """The sums under the table, as sentences."""
    shared = [step.turn for step in steps]
    prompt = sum(turn.prompt_tokens for turn in shared)
    crossed = sum(turn.cross_agent for turn in shared)
    lines = [
        "TTFT: time to first token. From others: cached tokens that another agent's request had put there.",
        f"Prompt tokens in all: {prompt}; {crossed} of them ({crossed / prompt:.0%}) were KV that another agent had "
        f"left in the cache.",
    ]
    if replayed:
        computed, computed_alone = (sum(turn.prefilled for turn in turns) for turns in (shared, replayed))
        waited, waited_alone = (sum(turn.ttft for turn in turns) for turns in (shared, replayed))
        lines += [
            f"Prefilled: {computed} tokens under icarus, {computed_alone} under nonshared "
            f"({computed_alone / computed:.1f} times as many).",
            f"Time to first token, all turns: {waited:.1f} s under icarus, {waited_alone:.1f} s under nonshared "
            f"({waited_alone / waited:.1f} times as long).",
        ]
    return lines
