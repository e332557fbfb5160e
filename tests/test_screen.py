"""The transcript on a terminal: who speaks, on which line, and nothing that steers the terminal."""

from __future__ import annotations

import io

from rich.console import Console

from descant.workflows import events
from descant.workflows.screen import Screen


def shown(*told: dict[str, str | None]) -> str:
    out = io.StringIO()
    screen = Screen(Console(file=out, width=80, color_system=None), ["plan", "act"])
    for event in told:
        screen.show(event)
    screen.end()
    return out.getvalue()


def turn(agent: str, cue: str) -> dict[str, str | None]:
    return {"event": events.TURN, "node": agent, "agent": agent, "cue": cue}


def text(agent: str, said: str) -> dict[str, str | None]:
    return {"event": events.TEXT, "node": agent, "agent": agent, "text": said}


def written(said: str) -> dict[str, str | None]:
    return {"event": events.WRITTEN, "node": "node", "text": said}


END = {"event": events.TURN_END, "node": "plan", "agent": "plan"}


def test_each_turn_begins_a_line_and_goes_on_indented() -> None:
    assert (
        shown(
            turn("plan", "Thought:"),
            text("plan", " Look"),
            text("plan", " it up."),
            written("\nAction:"),
            text("plan", " Lookup"),
            END,
            turn("act", "["),
            text("act", "Porto]"),
            END,
            written("Observation: a city\n"),
        )
        == "plan  Thought: Look it up.\n      Action: Lookup\nact   [Porto]\ntool  Observation: a city\n"
    )


def test_control_characters_are_shown_not_sent() -> None:
    said = shown(turn("plan", ""), text("plan", "a\x1b[31mb\x07\x9b2Jc"))
    assert said == "plan  a\N{REPLACEMENT CHARACTER}[31mb" + 2 * "\N{REPLACEMENT CHARACTER}" + "2Jc\n"
