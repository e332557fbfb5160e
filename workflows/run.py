"""`descant run`: a graph on a server, streamed, with checkpoints, so that a run that was cut off can go on."""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import json
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import CheckpointTuple
from langgraph.graph.state import CompiledStateGraph
from langgraph.types import Command
from rich.console import Console

from descant.agents.observation import clean
from descant.agents.tool import Tool
from descant.agents.tools.geonames import Geonames
from descant.runtime.cache import cache_dir
from descant.runtime.client import Client
from descant.runtime.errors import DescantError
from descant.workflows.checkpoints import SqliteCheckpoints
from descant.workflows.geography.graph import geography
from descant.workflows.graph import AgentGraph
from descant.workflows.interrupts import answers, how_to_answer, pending
from descant.workflows.ready import ROLES, Served, choose, described, ready, toolbox
from descant.workflows.serving import serving, standins
from descant.workflows.state import Trajectory
from descant.workflows.summary import Totals
from descant.workflows.user_graph import is_user_graph, user_graph

CHECKPOINTS = "runs.sqlite"
SETUP = "descant"  # the key of a checkpoint's metadata under which a run's setup lies
# Events around those of `descant.workflows.events`: the first, and the last, or one a question that the graph asks.
RUN, RESULT, INTERRUPT = "run", "result", "interrupt"
INTERNAL = frozenset((*Trajectory.__annotations__, "memory", "__interrupt__"))

Show = Callable[[Mapping[str, Any]], None]
Note = Callable[[str], None]


@dataclass(frozen=True)
class Setup:
    """How a run is set up: JSON, kept with its checkpoints, and all that its resumption needs.

    workflow: a name in `ROLES`, or FILE.py:NAME.
    server: address of a running one; None starts one for the run, with `model` (None: the demo's) and the stand-in
        adapters.
    adapters: by role; "" is the base model. A role that is not there gets the adapter of its name.
    passages: a JSONL file. key: the right answer. steps: rounds at most.
    places: whether plan-act-reflect is the graph that the shipped adapters were trained in, for questions about places.
    examples: whether to show finished transcripts; None shows them where there may be no trained adapters.
    """

    workflow: str
    question: str
    server: str | None = None
    model: str | None = None
    adapters: Mapping[str, str] | None = None
    passages: str | None = None
    wikipedia: bool = False
    key: str | None = None
    steps: int | None = None
    examples: bool | None = None
    places: bool = False

    def check(self) -> None:
        """Raise DescantError if the parts do not fit."""
        if not clean(self.question):
            raise DescantError("There is no question: write one behind the workflow.")
        if self.server is not None and self.model is not None:
            raise DescantError("The server has its model already: give --model or --server, not both.")
        if not is_user_graph(self.workflow):
            if self.workflow not in ROLES:
                raise DescantError(f"There is no workflow {self.workflow!r}: name {', '.join(ROLES)} or FILE.py:NAME.")
            if self.key is not None and self.workflow != "reflexion":
                raise DescantError(f"Only reflexion judges by a key, not {self.workflow}: leave --key out.")
            return
        own = {"adapters", "passages", "wikipedia", "key", "steps", "examples"}
        if given := [name for name in sorted(own) if getattr(self, name) not in (None, False)]:
            raise DescantError(f"A graph of your own says that itself: leave --{', --'.join(given)} out.")


def begin(setup: Setup, thread: str | None, console: Console, show: Show, note: Note) -> None:
    """Run a graph from its beginning.

    Args:
        thread: the run's id; a new one if None.
        console: for what happens before the run.
        show: gets each event, the result last.
        note: gets sentences beside them.

    Raises:
        DescantError: something does not fit, or the server failed.
    """
    setup.check()
    saver = checkpoints()
    thread = thread or uuid.uuid4().hex[:8]
    with alone(thread):
        if saver.get_tuple(config_of(thread)) is not None:
            raise DescantError(f"There is a run {thread} already: resume it, or choose another --thread.")
        _run(setup, thread, saver, {"question": setup.question}, console, show, note)


def resume(thread: str, server: str | None, answer: str | None, console: Console, show: Show, note: Note) -> None:
    """Go on with a run that was cut off or asks; of one that had ended, show the result again.

    Args:
        server: where to go on, if not on the server of the beginning.
        answer: to what the graph asks; see `descant.workflows.interrupts.answers`.

    Raises:
        DescantError: there is no such run, the answer is to nothing, or as `begin`.
    """
    saver = checkpoints()
    found = saver.get_tuple(config_of(thread))
    if found is None:
        raise DescantError(f"There is no run {thread}: descant run prints the id of each.")
    setup = setup_of(found)
    if setup is None:
        raise DescantError(f"The run {thread} was not begun by descant run: resume it where it was begun.")
    if server is not None:
        setup = replace(setup, server=server, model=None)
    given: Command[Any] | None = None if answer is None else Command(resume=answers(thread, pending(found), answer))
    with alone(thread):
        _run(setup, thread, saver, given, console, show, note)


@contextmanager
def alone(thread: str) -> Iterator[None]:
    """No other process may run this thread within the block; the lock ends with the process, however that ends."""
    folder = cache_dir() / "locks"
    folder.mkdir(parents=True, exist_ok=True)
    name = hashlib.sha256(thread.encode(errors="surrogateescape")).hexdigest()[:32]
    with (folder / name).open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise DescantError(f"The run {thread} is going on in another process: wait for its end.") from error
        yield


def checkpoints() -> SqliteCheckpoints:
    """Those of all runs."""
    folder = cache_dir()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DescantError(
            f"The cache folder {folder} cannot be written ({error.strerror}): set DESCANT_CACHE to one that can."
        ) from error
    return SqliteCheckpoints(folder / CHECKPOINTS)


@contextmanager
def reach(server: str | None, model: Path | None, console: Console, **options: Any) -> Iterator[tuple[Client, Served]]:
    """The server at this address, or one that runs as long as the block, and what it has."""
    if server is not None:
        with Client(server) as client:
            yield client, Served.by(client)
    else:
        checkpoint, adapters = standins(console, model)
        with serving(console, checkpoint, adapters, "icarus", **options) as client:
            yield client, Served.by(client)


def untrained(server: str | None, adapters: Mapping[str, str | None]) -> bool:
    """Whether some role may have no trained adapter, so that examples help."""
    return server is None or not all(adapters.values())


def _run(
    setup: Setup,
    thread: str,
    saver: SqliteCheckpoints,
    given: Mapping[str, Any] | Command[Any] | None,
    console: Console,
    show: Show,
    note: Note,
) -> None:
    own = user_graph(setup.workflow) if is_user_graph(setup.workflow) else None
    if own is not None and "question" not in own.state.__annotations__:
        raise DescantError(f"The state of {setup.workflow} has no key question: add one, where the question goes.")
    tools = toolbox_of(setup) if own is None else None
    with reach(setup.server, Path(setup.model) if setup.model else None, console) as (client, served):
        graph = own
        if graph is None:
            assert tools is not None
            graph, setup = ready_graph(setup, served, tools)
        for agent in graph.agents.values():
            served.check(agent.adapter)
        agents = {agent.name: agent.adapter for agent in graph.agents.values()}
        note(f"{described(agents)}.")
        note(f"Run {thread}: if it is cut off, descant run --resume {thread} goes on with it.")
        show({"event": RUN, "thread": thread, **asdict(setup), "agents": agents})
        config = config_of(thread, setup)
        state = asyncio.run(stream(graph.compile(client, checkpointer=saver), given, config, show))
    found = saver.get_tuple(config)
    if found is not None and (asked := pending(found)):
        for one in asked:
            show({"event": INTERRUPT, "thread": thread, "id": one.id, "value": one.value})
        note(f"To answer: {how_to_answer(thread, asked)}")
    else:
        show(result(graph, thread, state))


def toolbox_of(setup: Setup) -> Callable[[], list[Tool]]:
    """What makes the tools of a ready-made graph; see `toolbox`."""
    return toolbox(Path(setup.passages) if setup.passages else None, setup.wikipedia)


def ready_graph(setup: Setup, served: Served, tools: Callable[[], list[Tool]]) -> tuple[AgentGraph, Setup]:
    """The ready-made graph, and the setup with what was chosen now, which is what a resumption has to choose.

    Raises:
        DescantError: the server lacks an adapter.
    """
    adapters = choose(setup.workflow, setup.adapters or {}, served)
    if setup.places and setup.workflow == "plan-act-reflect":
        examples = False
        graph = geography(adapters, Geonames())
    else:
        examples = untrained(setup.server, adapters) if setup.examples is None else setup.examples
        graph = ready(
            setup.workflow,
            adapters,
            tools(),
            context=served.context,
            key=setup.key,
            steps=setup.steps,
            examples=examples,
        )
    return graph, replace(setup, adapters={role: name or "" for role, name in adapters.items()}, examples=examples)


def setup_of(found: CheckpointTuple) -> Setup | None:
    """How the run of this checkpoint was set up; None if it was not begun here."""
    kept = found.metadata.get(SETUP)
    return Setup(**json.loads(kept)) if isinstance(kept, str) else None


async def stream(
    app: CompiledStateGraph[Any, Any, Any, Any],
    given: Mapping[str, Any] | Command[Any] | None,
    config: RunnableConfig,
    show: Show,
    see: Show = lambda _: None,
) -> Mapping[str, Any]:
    """The last state. Ctrl-C cancels this task, which ends the turn that is running on the server too.

    Args:
        show: gets each event. see: gets each state, from that in which the run stands on.
    """
    snapshot = await app.aget_state(config)
    state: Mapping[str, Any] = snapshot.values
    see(state)
    # Not `snapshot.next`: cut off while a checkpoint was written, a run has tasks that are done, and more after them.
    if given is None and not snapshot.tasks:
        return state
    event: Any
    async for mode, event in app.astream(given, config, stream_mode=["custom", "values"], durability="sync"):
        if mode == "values":
            state = event
            see(state)
        else:
            show(event)
    return state


def result(graph: AgentGraph, thread: str, state: Mapping[str, Any]) -> dict[str, Any]:
    """The last event: the answer, why the run ended, what it cost, and the graph's own keys."""
    own = {key: value for key, value in state.items() if key not in INTERNAL and key in graph.state.__annotations__}
    return {
        "event": RESULT,
        "thread": thread,
        "answer": state.get("answer"),
        "ended": state.get("ended"),
        **Totals.of_run(state).as_json(),
        "state": own,
    }


def config_of(thread: str, setup: Setup | None = None) -> RunnableConfig:
    """LangGraph's config of a run; with `setup`, each checkpoint keeps that."""
    config: RunnableConfig = {"configurable": {"thread_id": thread}}
    if setup is not None:
        config["metadata"] = {SETUP: json.dumps(asdict(setup))}
    return config
