"""The graph for questions about places, as adapters that know their roles can drive it: any action, at any time."""

from __future__ import annotations

from collections.abc import Mapping

from descant.agents.agent import Agent
from descant.agents.tool import Tool
from descant.agents.tools.calculator import calculator
from descant.agents.tools.geonames import Geonames
from descant.workflows.actions import asked
from descant.workflows.graph import AgentGraph
from descant.workflows.limits import Limits
from descant.workflows.plan_act_reflect import plan_act_reflect
from descant.workflows.ready import GREEDY, ROLES, Adapters

# Short, since every sample and every run begins with it.
SYSTEM = "Answer the question with tools: Lookup[place], Calculate[expression], Finish[answer]."
STEPS = 10  # the longest run that is wrong once takes 6


def geography(
    adapters: Adapters, geonames: Geonames, *, examples: str = "", steps: int = STEPS, limits: Limits | None = None
) -> AgentGraph:
    """Plan, act and reflect answer a question about places.

    Args:
        adapters: by role; None is the base model.
        examples: finished transcripts, for the base model.
        steps: rounds at most.
    """
    plan, act, reflect = (Agent(role, adapters[role], sampling=GREEDY) for role in ROLES["plan-act-reflect"])
    return plan_act_reflect(
        plan, act, reflect, tools(geonames), steps=steps, limits=limits, examples=examples, system=SYSTEM
    )


def tools(geonames: Geonames) -> list[Tool]:
    """`Lookup[place]` and `Calculate[expression]`."""
    return [*geonames.tools(), calculator]


def opening(question: str) -> list[Mapping[str, str]]:
    """What every agent reads first, without examples."""
    return [*asked(SYSTEM)({"question": question})]
