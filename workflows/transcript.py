"""What `descant run` prints: its events as a transcript, or as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from descant.workflows.run import INTERRUPT, RESULT, RUN
from descant.workflows.screen import Screen, visible
from descant.workflows.summary import line


def as_json(event: Mapping[str, Any]) -> None:
    """One event a line."""
    print(json.dumps(event, ensure_ascii=False, default=str), flush=True)


class Transcript:
    """Prints a run for people, one colour an agent."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._screen = Screen(console, ())

    def show(self, event: Mapping[str, Any]) -> None:
        if event["event"] == RUN:
            self._screen = Screen(self._console, event["agents"])
            self._console.print(Text(f"{event['question']}\n", "bold"))
        elif event["event"] == RESULT:
            self.end()
            self._result(event)
        elif event["event"] == INTERRUPT:
            self.end()
            self._print({"Asks": event["value"]})
        else:
            self._screen.show(event)

    def end(self) -> None:
        """Close the line of a turn."""
        self._screen.end()

    def _result(self, event: Mapping[str, Any]) -> None:
        rows = {"Answer": event["answer"] or "none"}
        if "answer" not in event["state"]:  # a graph of the user's may give another name to what comes of it
            rows.update({key: value for key, value in event["state"].items() if key != "question"})
        rows |= {"Ended": event["ended"] or "the graph was through", "Totals": line(event)}
        self._print(rows)

    def _print(self, rows: Mapping[str, Any]) -> None:
        table = Table.grid(padding=(0, 2))
        table.add_column(style="bold")
        table.add_column()
        for name, value in rows.items():
            table.add_row(Text(name), Text(visible(str(value))))
        self._console.print()
        self._console.print(table)
