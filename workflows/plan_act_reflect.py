"""Plan, act, reflect: AutoAct's three roles (Qiao et al., arXiv 2401.05268), the workload of PReCache (section 4.1)."""

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
    VERDICT_TOKENS,
    Acting,
    Actions,
    asked,
    described,
    think,
    with_cue,
    with_examples,
)
from descant.workflows.graph import AgentGraph
from descant.workflows.limits import Limits

STEPS = 14
VERDICTS = 2
LINES = """\
Thought: what you know, and what to find out next.
Action: what to do about it.
Observation: what the tool said.
After Finish, a Thought on whether the answer is right, and Reflect[right] or Reflect[wrong]."""
ASK = "Observation: Is this answer right? Reflect on it.\n"
AGAIN = "Observation: The answer is wrong. Begin another round.\n"


class Reflecting(Acting, total=False):
    """Beside `Acting`. verdict: "right" or "wrong", of the last answer. verdicts: how many there were."""

    verdict: str
    verdicts: int


def plan_act_reflect(
    plan: Agent,
    act: Agent,
    reflect: Agent,
    tools: Sequence[Tool] | Actions,
    *,
    steps: int = STEPS,
    limits: Limits | None = None,
    examples: str = "",
    system: str | None = None,
) -> AgentGraph:
    """Answer `question`: plan writes a thought and the kind of an action, act its argument, in one line of both.

    After Finish, reflect judges the answer: right ends the run, wrong begins another round, and the second verdict ends
    it whatever it is.

    Args:
        steps: rounds at most.
        tools: what may be called, or `Actions` that say more than that.
        examples: finished transcripts, for models that were not trained on such lines.
        system: what all agents read first; the lines and the actions, described, if None.
    """
    actions = Actions.of(tools)
    opening = asked(with_examples(described(LINES, actions) if system is None else system, examples))
    graph = AgentGraph(Reflecting, opening=opening, limits=limits)

    def planning(s: Any, state: Mapping[str, Any], rounds: int = 0) -> dict[str, Any]:
        think(s, "thought")
        kinds = "|".join(actions.open({**state, "rounds": rounds + 1}))
        s += "Action:" + sgl.gen("named", max_tokens=ARGUMENT_TOKENS, regex=f" ({kinds})")
        return {"kind": s["named"].strip(), "rounds": rounds + 1}

    def acting(s: Any, kind: str, state: Mapping[str, Any]) -> dict[str, Any]:
        pattern = rf"({actions.argument(kind, state)})\]"
        s += sgl.gen("argument", max_tokens=ARGUMENT_TOKENS, regex=pattern)
        s += "\n" if s["argument"].endswith("]") else "]\n"
        argument = s["argument"].removesuffix("]").strip()
        return {"argument": argument, "answer": argument if kind == FINISH else state.get("answer")}

    def asking(s: Any) -> None:
        s += ASK

    def reflecting(s: Any, verdicts: int = 0) -> dict[str, Any]:
        think(s, "thought")
        s += "Action: Reflect["
        s += sgl.gen("verdict", max_tokens=VERDICT_TOKENS, regex="(right|wrong)") + "]\n"
        if s["verdict"] == "wrong":
            s += AGAIN
        return {"verdicts": verdicts + 1}

    def finish(state: Mapping[str, Any]) -> dict[str, str]:
        if state.get("verdict") == "right":
            return {"ended": "answered"}
        judged = state.get("verdicts", 0)
        return {"ended": f"limit of {VERDICTS} verdicts" if judged >= VERDICTS else f"limit of {steps} steps"}

    def over(state: Mapping[str, Any]) -> bool:
        return state["verdict"] == "right" or state["verdicts"] >= VERDICTS or state["rounds"] >= steps

    graph.add_step("plan", with_cue(plan, "Thought:"), planning)
    graph.add_step("act", with_cue(act, "["), acting)
    graph.add_step("observe", None, actions.observe)
    graph.add_step("ask", None, asking)
    graph.add_step("reflect", with_cue(reflect, "Thought:"), reflecting)
    graph.add_node("finish", finish)
    graph.add_edge(START, "plan").add_edge("plan", "act")
    graph.add_conditional_edges("act", lambda s: "ask" if s["kind"] == FINISH else "observe", ["observe", "ask"])
    graph.add_conditional_edges("observe", lambda s: "finish" if s["rounds"] >= steps else "plan", ["plan", "finish"])
    graph.add_edge("ask", "reflect")
    graph.add_conditional_edges("reflect", lambda s: "finish" if over(s) else "plan", ["plan", "finish"])
    return graph
