"""What the demo shows: turns as they stream, then what each cost."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from descant.runtime.client import Turn
from descant.workflows.trajectory import Step

COLOURS = {"plan": "cyan", "act": "green", "reflect": "magenta"}
LABEL_WIDTH = max(map(len, COLOURS)) + 2


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


def costs(steps: Sequence[Step], replayed: Sequence[Turn] | None) -> Table:
    """One row a turn: what it read, what of it was cached, whose that was, and the time to its first token.

    Args:
        replayed: the same turns under `nonshared`, for comparison.
    """
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("turn", justify="right")
    table.add_column("agent")
    headers = ["prompt\ntokens", "icarus\ncached", "from\nothers", "icarus\nTTFT"]
    if replayed:
        headers += ["nonshared\ncached", "nonshared\nTTFT"]
    for header in headers:
        table.add_column(header, justify="right")
    for number, step in enumerate(steps, 1):
        turn = step.turn
        row = [str(turn.prompt_tokens), str(turn.cached_tokens), str(turn.cross_agent), f"{turn.ttft:.2f} s"]
        if replayed:
            other = replayed[number - 1]
            row += [str(other.cached_tokens), f"{other.ttft:.2f} s"]
        table.add_row(str(number), Text(step.agent, COLOURS[step.agent]), *row)
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
