"""What one page offers: a server, and the graphs that run on it with which adapters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from descant.agents.observation import clean
from descant.runtime import protocol
from descant.runtime.client import Client
from descant.runtime.errors import DescantError
from descant.workflows.graph import AgentGraph
from descant.workflows.ready import ROLES, Served
from descant.workflows.run import Setup, ready_graph, toolbox_of

SHARING = ("icarus", "fullshared")
STATUS_S = 5.0  # until a server that does not answer counts as away
CONTEXT = 8192  # of a graph that is only looked at
LONGEST_QUESTION = 2000  # characters
TITLES = {
    "react": ("ReAct", "Think, act and observe in turn, until one answers."),
    "reflexion": ("Reflexion", "Up to three trials; what went wrong is put in words and read in the next."),
    "plan-act-reflect": ("Plan, act, reflect", "One plans, one acts, one judges the answer."),
}
QUESTIONS = (
    "What are the capitals of Portugal and Mongolia?",
    "What is the currency of Japan?",
    "Which country has more people, Peru or Kenya?",
)


@dataclass(frozen=True)
class Page:
    """server: its address. adapters: by role, "" for the base model; a role that is not there has the adapter of its
    name. places: as in `Setup`."""

    server: str
    adapters: Mapping[str, str] = field(default_factory=dict)
    places: bool = False

    def __post_init__(self) -> None:
        if unknown := sorted(set(self.adapters) - {role for roles in ROLES.values() for role in roles}):
            raise DescantError(f"No graph has an agent {', '.join(unknown)}: its agents are plan, act and reflect.")

    def chosen(self, workflow: str) -> dict[str, str]:
        """The adapter of each of the workflow's roles; "" is the base model."""
        return {role: self.adapters.get(role, role) for role in ROLES[workflow]}

    def setup(self, workflow: str, question: str) -> Setup:
        """Raises DescantError if there is no such graph, or no question."""
        if workflow not in ROLES:
            raise DescantError(f"There is no graph {workflow!r}: choose {', '.join(ROLES)}.")
        if len(question) > LONGEST_QUESTION:
            raise DescantError(f"The question has {len(question)} characters: write {LONGEST_QUESTION} at most.")
        if not clean(question):
            raise DescantError("There is no question: write one.")
        return Setup(
            workflow=workflow,
            question=question,
            server=self.server,
            adapters=self.chosen(workflow),
            examples=True,
            places=self.places,
        )

    def offered(self) -> dict[str, Any]:
        """What may be asked for, as JSON."""
        workflows = [
            {"name": name, "title": title, "about": about, "agents": self._agents(name)}
            for name, (title, about) in TITLES.items()
        ]
        return {"workflows": workflows, "questions": list(QUESTIONS), "server": self.server}

    def _agents(self, workflow: str) -> dict[str, str | None]:
        return {agent.name: agent.adapter for agent in drawn(self.setup(workflow, "?")).agents.values()}

    def found(self) -> dict[str, Any]:
        """What the server has now, as JSON; what is missing is a sentence."""
        report: dict[str, Any] = {"up": False, "model": None, "scheme": None, "context": None, "adapters": []}
        try:
            with Client(self.server, timeout=STATUS_S) as client:
                served, info = Served.by(client), client.call(protocol.server_info())
        except DescantError as error:
            return {**report, "message": str(error)}
        scheme = info.get("kv_sharing")
        wanted = {name for workflow in ROLES for name in self.chosen(workflow).values() if name}
        message = None
        if missing := sorted(wanted - set(served.adapters)):
            message = (
                f"The server has no adapter {', '.join(missing)}: start it with --lora-paths {missing[0]}=…, or this "
                "page with --adapters ROLE=NAME, where a name that is left out is the base model."
            )
        elif scheme not in SHARING:
            message = "The server keeps a cache for each adapter: start it with --kv-sharing icarus to share one."
        return {
            "up": True,
            "model": served.model,
            "scheme": scheme,
            "context": served.context,
            "adapters": list(served.adapters),
            "message": message,
        }


def drawn(setup: Setup) -> AgentGraph:
    """The graph of a run to look at, whatever the server has now."""
    served = Served(tuple(name for name in (setup.adapters or {}).values() if name), CONTEXT)
    graph, _ = ready_graph(setup, served, toolbox_of(setup))
    return graph
