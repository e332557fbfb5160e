"""Reflexion (Shinn et al., arXiv 2303.11366): act, evaluate, reflect in words, and try again with the reflections."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any

import sglang as sgl
from langgraph.graph import START

from descant.agents.agent import Agent
from descant.agents.tool import Tool
from descant.workflows.actions import VERDICT_TOKENS, Acting, Actions, asked, instructions, think, with_cue
from descant.workflows.graph import AgentGraph
from descant.workflows.limits import Limits
from descant.workflows.react import STEPS, add_rounds

TRIALS = 3
REMEMBERED = 3  # reflections that are written again where the trajectory had to be cut
LINES = """\
Thought: what you know, and what to find out next.
Action: what to do about it.
Observation: what the tool said.
Evaluation: whether the answer is right.
Reflection: what went wrong, and what to do in the next trial."""

Evaluator = Callable[[str | None, Mapping[str, Any]], bool]


class Trying(Acting, total=False):
    """Beside `Acting`. trial: the number of the one that goes on. reflections: one for each trial that failed."""

    trial: int
    right: bool
    reflections: Annotated[list[str], operator.add]


def reflexion(
    actor: Agent | Mapping[str, Agent],
    evaluator: Evaluator | Agent,
    reflector: Agent,
    tools: Sequence[Tool] | Actions,
    trials: int = TRIALS,
    *,
    steps: int = STEPS,
    context: int | None = None,
    limits: Limits | None = None,
    examples: str = "",
) -> AgentGraph:
    """Answer `question` in up to `trials` trials, each a ReAct run.

    A trial is appended to those before it, so that all of them stay in the cache. Only where the trajectory has grown
    to `context` tokens is it cut to its opening, which stays cached, with the last reflections behind it.

    Args:
        actor: as `react`'s agents.
        evaluator: a function of the answer (None if there was none) and the state, or an agent that judges.
        steps: rounds a trial at most.
        tools: what may be called, or `Actions` that say more than that.
        examples: finished transcripts, for models that were not trained on such lines.
    """
    actions = Actions.of(tools)
    graph = AgentGraph(Trying, opening=asked(instructions(LINES, actions, examples)), limits=limits)
    add_rounds(graph, actor, actions, steps, then="evaluate")

    def judge(s: Any) -> dict[str, bool]:
        s += sgl.gen("verdict", max_tokens=VERDICT_TOKENS, regex=" (right|wrong)") + "\n"
        return {"right": s["verdict"] == " right"}

    def evaluate(s: Any, state: Mapping[str, Any]) -> dict[str, bool]:
        right = bool(evaluator(state.get("answer"), state))  # type: ignore[operator]
        s += f"Evaluation: {'right' if right else 'wrong'}\n"
        return {"right": right}

    def reflect(s: Any) -> dict[str, list[str]]:
        think(s, "reflection")
        return {"reflections": [s["reflection"].strip()]}

    def again(s: Any, state: Mapping[str, Any], reflections: list[str], trial: int = 1) -> dict[str, Any]:
        if full(state) is not None:
            for reflection in reflections[-REMEMBERED:]:
                s += f"Reflection: {reflection}\n"
        s += f"Trial {trial + 1}.\n"
        return {"trial": trial + 1, "rounds": 0, "answer": None}

    def full(state: Mapping[str, Any]) -> int | None:
        """How much of the trajectory to keep, if it has grown too long."""
        return state["steps"][0]["tokens"] if context is not None and len(state["ids"]) >= context else None

    def finish(state: Mapping[str, Any]) -> dict[str, str]:
        return {"ended": "answered" if state["right"] else f"limit of {trials} trials"}

    if isinstance(evaluator, Agent):
        graph.add_step("evaluate", with_cue(evaluator, "Evaluation:"), judge)
    else:
        graph.add_step("evaluate", None, evaluate)
    graph.add_step("reflect", with_cue(reflector, "Reflection:"), reflect)
    graph.add_step("again", None, again, keep=full)
    graph.add_node("finish", finish)
    graph.add_edge(START, "think")
    graph.add_conditional_edges(
        "evaluate",
        lambda s: "finish" if s["right"] or s.get("trial", 1) >= trials else "reflect",
        ["finish", "reflect"],
    )
    graph.add_edge("reflect", "again").add_edge("again", "think")
    return graph
