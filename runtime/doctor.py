"""`descant doctor`: what this installation is made of, and whether the plugin takes hold in it."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from descant.runtime.errors import DescantError

REPORT = [sys.executable, "-P", "-m", "descant.sglang_ext.report"]


def report() -> dict[str, Any]:
    """The plugin's report on itself, made in a process of its own, because importing SGLang changes the importer.

    Raises:
        DescantError: the report could not be made.
    """
    process = subprocess.run(REPORT, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    try:
        found: dict[str, Any] = json.loads(process.stdout)
        return found
    except ValueError as error:
        last = next((line for line in reversed(process.stderr.splitlines()) if line.strip()), "it printed nothing")
        raise DescantError(
            f"SGLang with this plugin does not import ({last.strip()}): reinstall it with pip install '.[server]'."
        ) from error


def render(found: dict[str, Any]) -> Group:
    """The report as a person reads it."""
    facts = Table.grid(padding=(0, 2))
    facts.add_column(style="bold")
    facts.add_column()
    expected = "" if found["sglang"] == found["sglang_expected"] else f" (expected {found['sglang_expected']})"
    for name, value in (
        ("descant", found["descant"]),
        ("python", found["python"]),
        ("sglang", f"{found['sglang']}{expected}"),
        ("torch", found["torch"]),
        ("device", found["device"]),
        ("attention backend", found["attention_backend"]),
        ("LoRA backend", found["lora_backend"]),
    ):
        facts.add_row(name, Text(str(value)))
    hooks = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for header in ("", "hook into SGLang", "why"):
        hooks.add_column(header, overflow="fold")  # a name is one word, which Rich would cut in a narrow terminal
    for hook in found["hooks"]:
        took = Text("took", "green") if hook["took"] else Text("did not take", "bold red")
        hooks.add_row(took, Text(".".join(hook["target"].split(".")[-2:])), Text(hook["reason"]))
    problems = [Text(f"Problem: {problem}", "bold red") for problem in found["problems"]]
    return Group(facts, Text(), hooks, Text(), *(problems or [Text("No problems found.", "green")]))
