"""Graphs of agents: LangGraph's `StateGraph`, with steps that are SGLang programs on one shared trajectory."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from pathlib import Path
from typing import Any

from langchain_core.runnables import RunnableLambda
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.graph import END, START, StateGraph
from langgraph.graph.state import CompiledStateGraph
from langgraph.types import Send

from descant.agents.agent import Agent
from descant.runtime.client import Client
from descant.runtime.errors import DescantError
from descant.runtime.session import Session
from descant.workflows.checkpoints import SqliteCheckpoints
from descant.workflows.limits import OPENING, Limits
from descant.workflows.state import StepRecord, with_trajectory
from descant.workflows.step import Step

Messages = str | Sequence[Mapping[str, str]]
Router = Callable[[Any], Hashable | Sequence[Hashable]]

RECURSION = 10_000  # LangGraph's own limit on loops; ours end a run earlier, and say why


class GraphError(DescantError):
    """A graph that cannot be run as it is described."""


class AgentGraph:
    """Agents and edges, described once; `compile` gives a LangGraph graph.

    A run begins by writing the opening, what all agents read first. From there on each step appends to the trajectory
    what its program writes and what its agent says, as ids that are never tokenized again.

    Steps that LangGraph runs at the same time (its supersteps) each go on from what there was before. Then their parts
    stand one after the other, in the order of the steps' names (those of `Send`, as they were sent), and whatever runs
    next reads all of them, in whichever branch it is. All parts but the first are computed again, since their place has
    changed.

    A run ends at END, at one of `limits`, or after a node that returns `ended`, the reason; what is not a step (a plain
    LangGraph node) does not see to that.

    Args:
        state: a TypedDict of the graph's own keys, reducers included, as LangGraph has them; see
            `descant.workflows.state.Trajectory` for the keys that are added.
        opening: the text, or the messages for the model's chat template, or what makes either of the state. On a thread
            that has had a run, it is appended to what is there.
        limits: when a run is over, whatever its agents say.

    Raises:
        DescantError: the state has a key that every graph's state has, as something else.
    """

    def __init__(
        self,
        state: type | None = None,
        *,
        opening: Messages | Callable[[Any], Messages],
        limits: Limits | None = None,
    ) -> None:
        self.state = with_trajectory(state)
        self.limits = limits or Limits()
        self.agents: dict[str, Agent] = {}
        self._opening = opening
        self._steps: dict[str, Step] = {}
        self._build: list[Callable[[StateGraph[Any]], Any]] = []
        self._edges: dict[str, list[str]] = {}
        self._routed: set[str] = set()
        self._names = {START, END}

    @property
    def cues(self) -> dict[str, str]:
        """The cue with which each step of an agent begins."""
        return {name: step.agent.cue for name, step in self._steps.items() if step.agent is not None}

    def add_step(
        self,
        name: str,
        agent: Agent | None,
        program: Any,
        *,
        keep: Callable[[Mapping[str, Any]], int | None] | None = None,
        **options: Any,
    ) -> AgentGraph:
        """A node in which `agent` runs an SGLang program; see `Step` for agent, program and keep.

        Args:
            options: StateGraph.add_node's (retry_policy, defer, destinations, …).

        Raises:
            StepError: the program takes what the state does not have.
            GraphError: the name is taken.
        """
        self._name(name)
        keys = frozenset(self.state.__annotations__)
        self._steps[name] = Step(name, agent, program, keys, self.limits, keep)
        if agent is not None:
            self.agents.setdefault(agent.name, agent)
        self._build.append(lambda graph: graph.add_node(name, self._node(name), **options))
        return self

    def add_node(self, name: str, action: Any, **options: Any) -> AgentGraph:
        """Any LangGraph node, as StateGraph.add_node takes it."""
        self._name(name)
        self._build.append(lambda graph: graph.add_node(name, action, **options))
        return self

    def add_edge(self, start: str | list[str], end: str) -> AgentGraph:
        """From one node, or from when all of several are done, to another."""
        for source in [start] if isinstance(start, str) else start:
            self._edges.setdefault(source, []).append(end)
        parted = OPENING if start == START else start
        self._build.append(lambda graph: graph.add_edge(parted, end))
        return self

    def add_conditional_edges(
        self, source: str, router: Router, targets: Mapping[Hashable, str] | Sequence[str] | None = None
    ) -> AgentGraph:
        """Where to go on from `source`: `router(state)` gives one or several of `targets`, or END.

        Without targets it gives nodes' names. It may give LangGraph's `Send(node, {**state, …})`, too. A run that has
        ended goes to END instead.
        """
        routes: dict[Hashable, str] | None = None
        if targets is not None:
            routes = {END: END, **(targets if isinstance(targets, Mapping) else {name: name for name in targets})}
            self._routed.update(routes.values())
        self._routed.add(source)

        # Not annotated as the router is: LangGraph would show a router of `S` the keys of S alone, without `ended`.
        def route(state: Any) -> Any:
            if state.get("ended"):
                return END
            chosen = router(state)
            for one in chosen if isinstance(chosen, list | tuple) else [chosen]:
                if not isinstance(one, Send) and one not in (self._names if routes is None else routes):
                    names = ", ".join(map(repr, sorted(self._names) if routes is None else routes))
                    raise GraphError(f"The router of {source!r} gave {one!r}, which is none of {names}: add it.")
            return chosen

        route.__name__ = getattr(router, "__name__", route.__name__)
        parted = OPENING if source == START else source
        self._build.append(lambda graph: graph.add_conditional_edges(parted, route, routes))
        return self

    def compile(
        self,
        server: str | Client,
        *,
        checkpointer: BaseCheckpointSaver[Any] | Path | str | None = None,
        retry_for: float = 0.0,
        **options: Any,
    ) -> CompiledStateGraph[Any, Any, Any, Any]:
        """LangGraph's compiled graph: invoke, ainvoke, stream, get_state, get_graph().draw_mermaid(), ….

        To cancel an async run, or to leave its `astream`, ends the running turns at once. A sync `stream` that is left
        waits for them, as LangGraph waits for nodes.

        Args:
            server: the address of a running server, or a client of it.
            checkpointer: any of LangGraph's, or the path of an SQLite file; runs then need a thread_id.
            retry_for: seconds that a server may be away between turns before the run fails.
            options: StateGraph.compile's (interrupt_before, interrupt_after, store, name, …).

        Raises:
            GraphError: no edge leaves START, one names a node that is not there, or a loop can never end.
            DescantError: the checkpoints' file cannot be used.
        """
        self._check()
        client = Client(server, retry_for=retry_for) if isinstance(server, str) else server
        graph: StateGraph[Any] = StateGraph(self.state)
        self._client = client
        graph.add_node(OPENING, RunnableLambda(lambda state: self._open(client, state), name=OPENING))
        graph.add_edge(START, OPENING)
        for build in self._build:
            build(graph)
        saver = SqliteCheckpoints(checkpointer) if isinstance(checkpointer, str | Path) else checkpointer
        return graph.compile(checkpointer=saver, **options).with_config(recursion_limit=RECURSION)

    def _node(self, name: str) -> RunnableLambda[Any, Any]:
        node = self._steps[name].bind(self._client)
        return RunnableLambda(node.run, afunc=node.arun, name=name)

    def _open(self, client: Client, state: Any) -> dict[str, Any]:
        start = time.monotonic()
        opening = self._opening(state) if callable(self._opening) else self._opening
        session = Session(client)
        if isinstance(opening, str):
            session.append(opening)
        else:
            session.append_ids(client.tokenize_chat(opening))
        record = StepRecord(node=OPENING, agent=None, tokens=len(session), seconds=time.monotonic() - start, turns=[])
        return {"ids": list(session.ids), "steps": [record], "ended": None}

    def _name(self, name: str) -> None:
        if name in (*self._names, OPENING):
            raise GraphError(f"The graph has a node {name!r} already: choose another name.")
        self._names.add(name)

    def _check(self) -> None:
        named = self._routed.union(self._edges, *self._edges.values())
        if START not in named:
            raise GraphError("The graph does not say what runs first: add an edge from START.")
        if unknown := sorted(named - self._names):
            raise GraphError(f"An edge names the node {unknown[0]!r}, which the graph does not have: add it.")
        for name in self._edges:
            if _reaches(self._edges, name, name):
                raise GraphError(
                    f"The loop through {name!r} has no conditional edge, so nothing could end it: add one."
                )


def _reaches(edges: Mapping[str, Sequence[str]], start: str, goal: str) -> bool:
    """Whether unconditional edges lead from `start` to `goal`."""
    seen: set[str] = set()
    ahead = list(edges.get(start, ()))
    while ahead:
        name = ahead.pop()
        if name == goal:
            return True
        if name not in seen:
            seen.add(name)
            ahead += edges.get(name, ())
    return False
