"""The runs of a page: each goes on whoever watches, can be watched from its beginning, and lies in the checkpoints."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from langgraph.checkpoint.base import CheckpointTuple

from descant.runtime import protocol
from descant.runtime.client import Client
from descant.runtime.errors import DescantError
from descant.workflows import events
from descant.workflows.checkpoints import SqliteCheckpoints
from descant.workflows.ready import ROLES, Served
from descant.workflows.run import RUN, Setup, alone, config_of, ready_graph, result, setup_of, stream, toolbox_of
from descant.workflows.ui.page import Page, drawn
from descant.workflows.ui.told import Event, Told, pieces, retold, turn_end

logger = logging.getLogger(__name__)

RUNNING, ENDED, STOPPED, FAILED, CUT_OFF = "running", "ended", "stopped", "failed", "cut off"
RESUMED = "resumed"
RETRY_S = 15.0  # for which a server may be away between two turns
MOST_RUNNING = 8
MOST_KEPT = 100  # finished runs in memory; the others are read again
MOST_LISTED = 50


class NoRun(DescantError):
    """A run that is not there."""


class Busy(DescantError):
    """Something that cannot be done now."""


@dataclass
class Run:
    """events: from the beginning on. begun: ISO 8601."""

    thread: str
    setup: Setup
    begun: str
    events: list[Event] = field(default_factory=list)
    status: str = RUNNING
    answer: str | None = None
    told: Told = field(default_factory=Told)
    task: asyncio.Task[None] | None = None
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    def tell(self, event: Event, status: str = RUNNING) -> None:
        """Add an event; with another status than RUNNING it is the last."""
        self.events.append(event)
        self.status = status
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def follow(self, at: int) -> AsyncIterator[tuple[int, Event]]:
        """The events from number `at` on, and those to come, until one was the last."""
        while True:
            while at < len(self.events):
                yield at, self.events[at]
                at += 1
            if self.status != RUNNING:
                return
            await self._changed.wait()

    def listed(self) -> dict[str, Any]:
        """One line of the list of runs."""
        return {
            "thread": self.thread,
            "workflow": self.setup.workflow,
            "question": self.setup.question,
            "begun": self.begun,
            "status": self.status,
            "answer": self.answer,
            "resumable": self.status in (STOPPED, FAILED, CUT_OFF),
        }


class Runs:
    """Begins, follows and finds runs. To be used in one event loop."""

    def __init__(self, page: Page, saver: SqliteCheckpoints) -> None:
        self._page, self._saver = page, saver
        self._client = Client(page.server, retry_for=RETRY_S)
        self._runs: dict[str, Run] = {}

    async def begin(self, workflow: str, question: str) -> Run:
        """Raises DescantError if the server cannot be reached or lacks an adapter, or what is asked does not fit."""
        setup = self._page.setup(workflow, question)
        self._room()
        served = await asyncio.to_thread(self._served)
        graph, setup = ready_graph(setup, served, toolbox_of(setup))  # before the run begins: it may be refused
        run = Run(uuid.uuid4().hex[:8], setup, datetime.now(UTC).isoformat(timespec="seconds"))
        self._keep(run)
        run.tell(_first(run, {agent.name: agent.adapter for agent in graph.agents.values()}))
        run.task = asyncio.create_task(self._go(run, served, {"question": setup.question}))
        return run

    async def resume(self, thread: str) -> Run:
        """Go on with a run that failed, was stopped or cut off, from its last checkpoint.

        Raises:
            NoRun: there is none. Busy: it is running, or is over. DescantError: as `begin`.
        """
        run = await self.find(thread)
        if run.status not in (STOPPED, FAILED, CUT_OFF):
            raise Busy(f"The run {thread} is {run.status}: only one that was stopped or failed can go on.")
        self._room()
        served = await asyncio.to_thread(self._served)
        # As the checkpoints have it: what was said in a step that did not end is said anew.
        again = await asyncio.to_thread(self._stored, thread)
        if self._runs.get(thread, run).status == RUNNING:
            raise Busy(f"The run {thread} is running.")
        given = None
        if again is None:  # it failed before its first checkpoint
            again = Run(thread, run.setup, run.begun, [run.events[0]])
            given = {"question": run.setup.question}
        if again.status == ENDED:
            self._keep(again)
            return again
        if again.events[-1]["event"] == STOPPED:
            again.events.pop()
        self._keep(again)
        again.tell({"event": RESUMED})
        again.task = asyncio.create_task(self._go(again, served, given))
        return again

    async def stop(self, thread: str) -> None:
        """End a run where it stands; its turn is aborted on the server.

        Raises:
            NoRun: there is none. Busy: it is over already.
        """
        run = await self.find(thread)
        if run.task is None or run.status != RUNNING:
            raise Busy(f"The run {thread} is {run.status} already.")
        run.task.cancel()

    async def find(self, thread: str) -> Run:
        """A run of this page, or one out of the checkpoints.

        Raises:
            NoRun: there is none.
        """
        if thread not in self._runs:
            stored = await asyncio.to_thread(self._stored, thread)
            if stored is None:
                raise NoRun(f"There is no run {thread}: the list of runs has those that are kept.")
            self._runs.setdefault(thread, stored)
        return self._runs[thread]

    async def listed(self) -> list[dict[str, Any]]:
        """All runs of ready-made graphs, the newest first."""
        stored = await asyncio.to_thread(self._all_stored)
        here = {thread: run.listed() for thread, run in self._runs.items()}
        lines = {**stored, **here}.values()
        return sorted(lines, key=lambda line: line["begun"], reverse=True)[:MOST_LISTED]

    async def close(self) -> None:
        """Stop what is running; it can go on later."""
        tasks = [run.task for run in self._runs.values() if run.task is not None and not run.task.done()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._client.close()

    async def _go(self, run: Run, served: Served, given: Mapping[str, Any] | None) -> None:
        def show(event: Mapping[str, Any]) -> None:
            run.tell(turn_end(event["node"], event) if event["event"] == events.TURN_END else dict(event))

        def see(state: Mapping[str, Any]) -> None:
            for event in run.told.steps(state):
                run.tell(event)

        try:
            with alone(run.thread):
                graph, setup = ready_graph(run.setup, served, toolbox_of(run.setup))
                app = graph.compile(self._client, checkpointer=self._saver)
                state = await stream(app, given, config_of(run.thread, setup), show, see)
            run.answer = state.get("answer")
            run.tell(result(graph, run.thread, state), ENDED)
        except asyncio.CancelledError:
            run.tell({"event": STOPPED, "resumable": True}, STOPPED)
        except DescantError as error:
            run.tell({"event": FAILED, "message": str(error), "resumable": True}, FAILED)
        except Exception as error:
            logger.exception(f"The run {run.thread} failed.")
            message = f"The run failed inside Descant ({type(error).__name__}: {error}): see the log of descant ui."
            run.tell({"event": FAILED, "message": message, "resumable": True}, FAILED)

    def _served(self) -> Served:
        with Client(self._page.server, timeout=RETRY_S) as client:  # no patience: somebody waits in front of the page
            return Served.by(client)

    def _room(self) -> None:
        if sum(run.status == RUNNING for run in self._runs.values()) >= MOST_RUNNING:
            raise Busy(f"{MOST_RUNNING} runs are going on: wait for the end of one, or stop one.")

    def _keep(self, run: Run) -> None:
        self._runs.pop(run.thread, None)
        self._runs[run.thread] = run
        over = [thread for thread, kept in self._runs.items() if kept.status != RUNNING]
        for thread in over[: max(0, len(self._runs) - MOST_KEPT)]:
            del self._runs[thread]

    def _all_stored(self) -> dict[str, dict[str, Any]]:
        """The line of each run in the checkpoints, by thread: those of a page's kind, the newest of each."""
        lines: dict[str, dict[str, Any]] = {}
        for thread, first, last in self._saver.threads(MOST_LISTED):
            setup = setup_of(last)
            if setup is not None and setup.workflow in ROLES:
                state = last.checkpoint["channel_values"]
                lines[thread] = Run(thread, setup, first, status=_status(state), answer=state.get("answer")).listed()
        return lines

    def _stored(self, thread: str) -> Run | None:
        """A run out of its checkpoints."""
        found: list[CheckpointTuple] = list(self._saver.list(config_of(thread)))[::-1]
        setup = setup_of(found[-1]) if found else None
        if setup is None or setup.workflow not in ROLES:
            return None
        graph = drawn(setup)
        states = [one.checkpoint["channel_values"] for one in found]
        run = Run(thread, setup, found[0].checkpoint["ts"], status=_status(states[-1]), answer=states[-1].get("answer"))
        run.events = [
            _first(run, {agent.name: agent.adapter for agent in graph.agents.values()}),
            *retold(states, graph.cues, self._texts(states)),
        ]
        for state in states:
            list(run.told.steps(state))
        if run.status == ENDED:
            run.events.append(result(graph, thread, states[-1]))
        else:
            run.events.append({"event": STOPPED, "resumable": True})
        return run

    def _texts(self, states: Sequence[Mapping[str, Any]]) -> dict[tuple[int, ...], str]:
        """The text of each step; none while the server is away."""
        ids = pieces(states)
        try:
            with Client(self._page.server, timeout=RETRY_S) as client:
                texts = client.call(protocol.detokenize_each(ids)) if ids else []
        except DescantError:
            return {}
        return dict(zip(ids, texts, strict=True))


def _status(state: Mapping[str, Any]) -> str:
    return ENDED if state.get("ended") is not None else CUT_OFF


def _first(run: Run, agents: Mapping[str, str | None]) -> Event:
    return {
        "event": RUN,
        "thread": run.thread,
        "workflow": run.setup.workflow,
        "question": run.setup.question,
        "agents": dict(agents),
        "begun": run.begun,
    }
