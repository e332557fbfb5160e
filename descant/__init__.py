"""Descant: many LoRA agents on one shared KV cache, on SGLang.

The public names, each imported when it is first used: what only asks for the version imports neither SGLang nor
LangGraph, and SGLang's processes, which load the plugin, import no graphs.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from descant._version import __version__
from descant.runtime.frontend import language_alone

language_alone()

if TYPE_CHECKING:
    from langgraph.graph import END, START
    from sglang import gen, select

    from descant.agents.agent import Agent
    from descant.agents.tool import call, tool
    from descant.runtime.server import Server
    from descant.runtime.session import AsyncSession, Session
    from descant.workflows.actions import Actions
    from descant.workflows.graph import AgentGraph
    from descant.workflows.limits import Limits
    from descant.workflows.plan_act_reflect import plan_act_reflect
    from descant.workflows.react import react
    from descant.workflows.reflexion import reflexion

__all__ = [
    "END",
    "START",
    "Actions",
    "Agent",
    "AgentGraph",
    "AsyncSession",
    "Limits",
    "Server",
    "Session",
    "__version__",
    "call",
    "gen",
    "plan_act_reflect",
    "react",
    "reflexion",
    "select",
    "tool",
]

# The same as above, for the run time; a test compares the two.
_MODULES = {
    "END": "langgraph.graph",
    "START": "langgraph.graph",
    "Actions": "descant.workflows.actions",
    "Agent": "descant.agents.agent",
    "AgentGraph": "descant.workflows.graph",
    "AsyncSession": "descant.runtime.session",
    "Limits": "descant.workflows.limits",
    "Server": "descant.runtime.server",
    "Session": "descant.runtime.session",
    "call": "descant.agents.tool",
    "gen": "sglang",
    "plan_act_reflect": "descant.workflows.plan_act_reflect",
    "react": "descant.workflows.react",
    "reflexion": "descant.workflows.reflexion",
    "select": "sglang",
    "tool": "descant.agents.tool",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_MODULES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
