"""Actions of agents, `Action: Kind[argument]`: how they are constrained, read, carried out and observed."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, TypedDict

import sglang as sgl

from descant.agents.agent import Agent
from descant.agents.tool import TIMEOUT_S, Tool, call, clean, usage
from descant.agents.tool_state import restore, save
from descant.runtime.errors import DescantError
from descant.workflows.events import observed

FINISH = "Finish"
# No counted repetition, {1,80}: the server would take seconds to compile it. max_tokens bounds the length.
ARGUMENT = r"[^\[\]\s][^\[\]\n]*"
THOUGHT = r" [^\[\]\n]+\n"
THOUGHT_TOKENS, ARGUMENT_TOKENS, VERDICT_TOKENS = 64, 32, 8

Pattern = str | Callable[[Mapping[str, Any]], str]


class Acting(TypedDict, total=False):
    """What graphs of agents that act keep.

    question: what was asked. thought, kind, argument, observation: of the last round. rounds: how many there were.
    answer: that of the last Finish. memory: what the tools remember of this run.
    """

    question: str
    thought: str
    kind: str
    argument: str
    observation: str
    rounds: int
    answer: str | None
    memory: dict[str, Any]
    observations: Annotated[list[dict[str, Any]], operator.add]


@dataclass(frozen=True)
class Actions:
    """What agents may do: call one of the tools, or finish.

    patterns: a regular expression for a kind's argument, or what makes one of the state; `ARGUMENT` otherwise. An
        argument holds neither brackets nor line breaks.
    allowed: the kinds that may be chosen in a state, if not all of them always; `rounds` counts the one that goes on.
    timeout: seconds that a tool may take.
    tools: those that remember something (`Search` and `Lookup` do) belong to one run at a time.

    Raises:
        DescantError: two actions have one name, or a name cannot stand in an action.
    """

    tools: Sequence[Tool]
    patterns: Mapping[str, Pattern] = field(default_factory=dict)
    allowed: Callable[[Mapping[str, Any]], Sequence[str]] | None = None
    timeout: float = TIMEOUT_S

    def __post_init__(self) -> None:
        if len(set(self.kinds)) < len(self.kinds):
            raise DescantError(f"Two actions have one name among {', '.join(self.kinds)}: rename a tool.")
        if unknown := set(self.patterns) - set(self.kinds):
            raise DescantError(f"There is a pattern for {', '.join(sorted(unknown))}, which no tool is called.")
        for name in self.kinds:
            if not re.fullmatch(r"\w+", name):
                raise DescantError(f"The tool name {name!r} cannot stand in an action: use letters, digits and _.")
        object.__setattr__(self, "_fresh", save(self.tools))

    @classmethod
    def of(cls, tools: Sequence[Tool] | Actions) -> Actions:
        return tools if isinstance(tools, Actions) else cls(tools)

    @property
    def kinds(self) -> list[str]:
        return [*(tool.name for tool in self.tools), FINISH]

    def described(self) -> str:
        """A line for each action, as an agent reads it."""
        lines = [f"{usage(tool)}: {clean(tool.description)}" for tool in self.tools]
        return "\n".join([*lines, f"{FINISH}[answer]: give the answer and end."])

    def open(self, state: Mapping[str, Any]) -> Sequence[str]:
        """The kinds that may be chosen now."""
        return self.kinds if self.allowed is None else self.allowed(state)

    def argument(self, kind: str, state: Mapping[str, Any]) -> str:
        """The regular expression of a kind's argument."""
        pattern = self.patterns.get(kind, ARGUMENT)
        return pattern if isinstance(pattern, str) else pattern(state)

    def whole(self, state: Mapping[str, Any]) -> str:
        """The regular expression of any action, ` Kind[argument]`."""
        return " (" + "|".join(rf"{kind}\[({self.argument(kind, state)})\]" for kind in self.open(state)) + ")"

    def observe(self, s: Any, kind: str, argument: str, memory: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """A program that carries the action out and writes its Observation, on one line of its own."""
        tool = next(tool for tool in self.tools if tool.name == kind)
        restore(self.tools, memory or self._fresh)  # type: ignore[attr-defined]
        observation = call(tool, argument, timeout=self.timeout)
        observed(observation)
        s += f"Observation: {observation.text}\n"
        told = {"tool": kind, "argument": argument, "text": observation.text, "ok": observation.ok}
        return {"observation": observation.text, "observations": [told], "memory": save(self.tools)}


def with_cue(agent: Agent, cue: str) -> Agent:
    """`agent` with `cue`, unless it has its own."""
    return agent if agent.cue else replace(agent, cue=cue)


def think(s: Any, name: str) -> None:
    """Let the agent write one line of thought, as the variable `name`."""
    s += sgl.gen(name, max_tokens=THOUGHT_TOKENS, regex=THOUGHT, stop="\n") + "\n"


def parse(action: str) -> tuple[str, str]:
    """Kind and argument of ` Kind[argument]`; the closing bracket may be cut off by the limit of tokens."""
    kind, _, argument = action.strip().partition("[")
    return kind, argument.removesuffix("]").strip()


def instructions(lines: str, actions: Actions, examples: str) -> str:
    """What all agents read before the question.

    Args:
        lines: which lines the agents write.
        examples: finished transcripts, for models that were not trained on such lines.
    """
    return with_examples(described(lines, actions), examples)


def described(lines: str, actions: Actions) -> str:
    """The lines that the agents write, and what they may do."""
    work = f"Answer the question with facts from tools. Work in lines:\n{lines}"
    return f"{work}\nActions are:\n{actions.described()}"


def with_examples(system: str, examples: str) -> str:
    """`system`, and finished transcripts behind it if there are any."""
    return f"{system}\n\nHere is an example.\n{examples.strip()}" if examples else system


def asked(system: str) -> Callable[[Mapping[str, Any]], list[dict[str, str]]]:
    """The opening of a graph that answers `question`."""

    def opening(state: Mapping[str, Any]) -> list[dict[str, str]]:
        if not isinstance(state.get("question"), str) or not clean(state["question"]):
            raise DescantError("There is no question: give invoke() a dict with the key question.")
        return [
            {"role": "system", "content": system},
            {"role": "user", "content": f"Question: {clean(state['question'])}"},
        ]

    return opening


def finish(reason: str) -> Callable[[Mapping[str, Any]], dict[str, str]]:
    """A node that ends a run; `reason` is why, where no answer was given."""

    def finish(state: Mapping[str, Any]) -> dict[str, str]:
        return {"ended": reason if state.get("answer") is None else "answered"}

    return finish
