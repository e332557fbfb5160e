"""A step: a node whose work is an SGLang program, run by one agent over the run's trajectory."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from inspect import Parameter
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.types import Command
from sglang.lang.ir import SglFunction

from descant.agents.agent import Agent
from descant.agents.tool import in_daemon
from descant.runtime.client import Client
from descant.runtime.errors import DescantError
from descant.runtime.programs import run_program
from descant.runtime.session import Session
from descant.runtime.turn import ContextFull, TurnTimeout
from descant.workflows.events import speaking, turn_ended, writing
from descant.workflows.limits import Limits, reason
from descant.workflows.state import RECORDED, StepRecord, cut, record

WHOLE = "state"  # a program's parameter of this name gets the whole state
CANCEL_AGAIN_S = 0.05
CANCEL_PATIENCE_S = 2.0


class StepError(DescantError):
    """A program and its graph's state do not fit."""


@dataclass(frozen=True)
class Step:
    """What a graph knows of one step; `bind` makes the node.

    agent: who runs the program; None: nobody, the program only writes text.
    program: an SGLang program, `f(s, …)`, decorated with `sgl.function` or not. What it takes after `s` are keys of the
        state; what it generates under the name of a key becomes that key's value, and so does what it returns as a
        dict. It may return a LangGraph `Command`.
    keys: of the state.
    keep: how many ids of the trajectory to go on from, given the state; None keeps all. Not for one of parallel steps:
        it would also forget what those before it in order have added.
    takes: the state's keys that the program takes, each with whether it has to have a value.
    """

    name: str
    agent: Agent | None
    program: Any
    keys: frozenset[str]
    limits: Limits
    keep: Callable[[Mapping[str, Any]], int | None] | None = None
    takes: dict[str, bool] = field(init=False)

    def __post_init__(self) -> None:
        written = isinstance(self.program, SglFunction)
        function, bound = (self.program.func, self.program.bind_arguments) if written else (self.program, {})
        parameters = list(inspect.signature(function).parameters.values())
        if not parameters or parameters[0].name != "s":
            raise StepError(f"The program of step {self.name!r} takes no `s` first: write it as f(s, …).")
        named = (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)
        takes = {
            p.name: p.default is Parameter.empty for p in parameters[1:] if p.kind in named and p.name not in bound
        }
        if unknown := [name for name, needed in takes.items() if needed and name not in (*self.keys, WHOLE)]:
            raise StepError(
                f"The program of step {self.name!r} takes {', '.join(unknown)}, which the state does not have: "
                "add the keys to the graph's state."
            )
        object.__setattr__(self, "takes", takes)
        # SglFunction itself takes plain functions alone.
        program = SglFunction(lambda s, **given: function(s, **given), bind_arguments=bound)
        object.__setattr__(self, "program", program)

    def bind(self, client: Client) -> Node:
        return Node(self, client)

    def arguments(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """The program's arguments, from the state.

        Raises:
            StepError: a key has no value yet.
        """
        given = {name: state[name] for name in self.takes if name in state}
        if WHOLE in self.takes and WHOLE not in self.keys:
            given[WHOLE] = state
        if missing := [name for name, needed in self.takes.items() if needed and name not in given]:
            raise StepError(
                f"Step {self.name!r} needs {', '.join(missing)}, which nothing has set: give it to invoke(), or let an "
                "earlier node return it."
            )
        return given

    def updates(self, variables: Mapping[str, Any], returned: Any) -> dict[str, Any]:
        """What the program has to say of the state.

        Raises:
            StepError: it returned what the state has no place for.
        """
        own = self.keys - RECORDED
        generated = {name: value for name, value in variables.items() if name in own}
        if returned is None:
            return generated
        if isinstance(returned, Mapping):
            if unknown := [str(name) for name in returned if name not in own]:
                raise StepError(
                    f"The program of step {self.name!r} returned {', '.join(unknown)}, and may set only "
                    f"{', '.join(sorted(own))}: add what is missing to the graph's state."
                )
            return {**generated, **returned}
        if self.name in self.keys:
            return {**generated, self.name: returned}
        raise StepError(
            f"The program of step {self.name!r} returned {type(returned).__name__}: return a dict of the state's keys, "
            f"or give the state a key {self.name!r}."
        )


@dataclass(frozen=True)
class Node:
    """A step on a server."""

    step: Step
    client: Client

    def run(self, state: Mapping[str, Any], config: RunnableConfig) -> Any:
        return self._run(Session(self.client, self._kept(state)), state, config)

    async def arun(self, state: Mapping[str, Any], config: RunnableConfig) -> Any:
        """As `run`, in a thread, since SGLang's interpreter is synchronous. Cancelling it ends the running turn."""
        session = Session(self.client, self._kept(state))
        work = asyncio.wrap_future(in_daemon(lambda: self._run(session, state, config)))
        try:
            return await asyncio.shield(work)
        except asyncio.CancelledError:
            # A program or a tool that does not end is left behind in its thread, a daemon.
            deadline = time.monotonic() + CANCEL_PATIENCE_S
            while not work.done() and time.monotonic() < deadline:
                session.cancel()
                await asyncio.wait({work}, timeout=CANCEL_AGAIN_S)
            if work.done():
                work.exception()  # a turn that was cancelled
            raise

    def _kept(self, state: Mapping[str, Any]) -> list[int]:
        if "ids" not in state:
            raise StepError(f"Step {self.step.name!r} was sent a state without the trajectory: send {{**state, …}}.")
        keep = self.step.keep(state) if self.step.keep is not None else None
        return list(state["ids"][:keep])

    def _run(self, session: Session, state: Mapping[str, Any], config: RunnableConfig) -> Any:
        step, agent = self.step, self.step.agent
        if state.get("ended"):
            return {}
        if why := step.limits.reached(state):
            return {"ended": why}
        start, before = time.monotonic(), len(session)
        arguments = step.arguments(state)
        with ExitStack() as stack:
            on_text = None
            if agent is not None:
                session.append(agent.cue)
                on_text = stack.enter_context(speaking(config, step.name, agent.name, agent.cue))
            try:
                done = run_program(
                    session,
                    agent.adapter if agent is not None else None,
                    step.program,
                    sampling=agent.sampling if agent is not None else None,
                    timeout=step.limits.left(state),
                    on_text=on_text,
                    on_write=writing(step.name),
                    **arguments,
                )
            except TurnTimeout:
                if step.limits.seconds is None:
                    raise
                return {"ended": reason(step.limits.seconds, "seconds")}
            except ContextFull:
                return {"ended": "limit of the model's context"}
        turns = [record(turn, agent.name if agent is not None else None) for turn in session.turns]
        for turn in turns:
            turn_ended(step.name, turn)
        new = list(session.ids[before:])
        written = StepRecord(
            node=step.name,
            agent=agent.name if agent is not None else None,
            tokens=len(new),
            seconds=time.monotonic() - start,
            turns=turns,
        )
        common = {"ids": cut(before, new) if before < len(state["ids"]) else new, "steps": [written]}
        returned = done.ret_value
        variables = done.stream_executor.variables
        if isinstance(returned, Command):
            update = {**step.updates(variables, returned.update), **common}
            return replace(returned, update=update)
        return {**step.updates(variables, returned), **common}
