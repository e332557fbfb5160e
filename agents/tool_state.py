"""What a tool remembers within a run, so that a run can go on from a checkpoint in another process."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from langchain_core.tools import BaseTool, StructuredTool
from pydantic import Field

State = dict[str, Any]  # JSON


class Memory(Protocol):
    """What tools of one run share, such as the page that was found last."""

    def state(self) -> State: ...
    def restore(self, state: State) -> None: ...


class StatefulTool(StructuredTool):
    """A tool whose answers depend on earlier calls in the same run."""

    memory: Any = Field(exclude=True, repr=False)  # a Memory


def save(tools: Iterable[BaseTool]) -> dict[str, State]:
    """What the tools of a run remember, as JSON by tool name, to be kept in the run's checkpoint."""
    return {tool.name: tool.memory.state() for tool in tools if isinstance(tool, StatefulTool)}


def restore(tools: Iterable[BaseTool], saved: Mapping[str, State]) -> None:
    """Let fresh tools continue where those of `save` stood."""
    for tool in tools:
        if isinstance(tool, StatefulTool) and tool.name in saved:
            tool.memory.restore(saved[tool.name])
