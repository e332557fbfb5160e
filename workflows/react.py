"""ReAct (Yao et al., arXiv 2210.03629): Thought, Action, Observation, until Finish."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import sglang as sgl
from langgraph.graph import START

from descant.agents.agent import Agent
from descant.agents.tool import Tool
from descant.workflows.actions import (
    ARGUMENT_TOKENS,
    FINISH,
    Acting,
    Actions,
    asked,
    finish,
    instructions,
    parse,
    think,
    with_cue,
)
from descant.workflows.graph import AgentGraph
from descant.workflows.limits import Limits

STEPS = 7  # the paper's limit for HotpotQA
LINES = """\
Thought: what you know, and what to find out next.
Action: what to do about it.
Observation: what the tool said."""


def react(
    agents: Agent | Mapping[str, Agent],
    tools: Sequence[Tool] | Actions,
    *,
    steps: int = STEPS,
    limits: Limits | None = None,
    examples: str = "",
) -> AgentGraph:
    """Answer `question` by thinking and acting in turn; `answer` and `ended` of the last state have what came of it.

    Args:
        agents: one agent, or the agents for the roles "think" and "act".
        steps: rounds at most.
        tools: what may be called, or `Actions` that say more than that.
        examples: finished transcripts, for models that were not trained on such lines.
    """
    actions = Actions.of(tools)
    graph = AgentGraph(Acting, opening=asked(instructions(LINES, actions, examples)), limits=limits)
    add_rounds(graph, agents, actions, steps, then="finish")
    graph.add_node("finish", finish(f"limit of {steps} steps"))
    graph.add_edge(START, "think")
    return graph


def add_rounds(graph: AgentGraph, agents: Agent | Mapping[str, Agent], actions: Actions, steps: int, then: str) -> None:
    """Add think, act and observe to `graph`, with the edges between; `then` follows Finish and the last round."""
    roles = {"think": agents, "act": agents} if isinstance(agents, Agent) else agents

    def thinking(s: Any, rounds: int = 0) -> dict[str, int]:
        think(s, "thought")
        return {"rounds": rounds + 1}

    def acting(s: Any, state: Mapping[str, Any]) -> dict[str, Any]:
        s += sgl.gen("action", max_tokens=ARGUMENT_TOKENS, regex=actions.whole(state))
        kind, argument = parse(s["action"])
        s += "\n" if s["action"].endswith("]") else "]\n"
        return {"kind": kind, "argument": argument, "answer": argument if kind == FINISH else None}

    graph.add_step("think", with_cue(roles["think"], "Thought:"), thinking)
    graph.add_step("act", with_cue(roles["act"], "Action:"), acting)
    graph.add_step("observe", None, actions.observe)
    graph.add_edge("think", "act")
    graph.add_conditional_edges("act", lambda s: then if s["kind"] == FINISH else "observe", ["observe", then])
    graph.add_conditional_edges("observe", lambda s: then if s["rounds"] >= steps else "think", ["think", then])
