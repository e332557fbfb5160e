"""Checkpoints: a run goes on in another process, in another way, beside others, exactly where it stood."""

from __future__ import annotations

import asyncio
import operator
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, TypedDict

import graphs
import pytest
from deployments import on
from engine import Server, together
from graphs import QUESTION, ROUNDS, loop, thread
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph

from descant.runtime.errors import DescantError
from descant.workflows.checkpoints import SqliteCheckpoints
from descant.workflows.run import stream

ALL = ["opening", *["think", "do"] * ROUNDS]


@on("llama")
@pytest.mark.parametrize("nodes", [1, 4])
def test_a_killed_process_is_gone_on_from(server: Server, tmp_path: Path, nodes: int) -> None:
    expected = loop().compile(server.url).invoke(QUESTION)
    file, report = tmp_path / "runs.sqlite", tmp_path / "report"
    report.touch()
    child = subprocess.Popen([sys.executable, graphs.__file__, server.url, str(file), str(report)])
    try:
        deadline = time.monotonic() + 60
        while len(report.read_text().splitlines()) < nodes:
            assert time.monotonic() < deadline
            assert child.poll() is None
            time.sleep(0.002)
    finally:
        child.send_signal(signal.SIGKILL)
        child.wait()
    done = report.read_text().split()
    assert len(done) < len(ALL)

    app = loop().compile(server.url, checkpointer=file)
    stood = app.get_state(thread("run"))
    had = [step["node"] for step in stood.values["steps"]]
    # A node is reported before its checkpoint is written, so the newest may be lacking.
    assert ALL[: len(had)] == had
    assert len(had) >= len(done) - 1
    state = app.invoke(None, thread("run"))
    assert [step["node"] for step in state["steps"]] == ALL
    assert state["ids"] == expected["ids"]
    assert (state["notes"], state["action"]) == (expected["notes"], expected["action"])
    assert state["steps"][: len(had)] == stood.values["steps"]


class Steps(TypedDict):
    steps: Annotated[list[str], operator.add]


class Stuck(SqliteCheckpoints):
    """Never writes the checkpoint behind the node `first`."""

    reached = asyncio.Event()

    async def aput(self, config: Any, checkpoint: Any, *rest: Any) -> Any:
        if checkpoint["channel_values"].get("steps") == ["first"]:
            self.reached.set()
            await asyncio.Event().wait()
        return await super().aput(config, checkpoint, *rest)


def test_a_run_that_is_cut_off_while_a_checkpoint_is_written_goes_on(tmp_path: Path) -> None:
    graph = StateGraph(Steps)
    graph.add_node("first", lambda _: {"steps": ["first"]})
    graph.add_node("last", lambda _: {"steps": ["last"]})
    graph.add_edge(START, "first").add_conditional_edges("first", lambda _: "last", ["last"])
    file = tmp_path / "runs.sqlite"

    async def cut_off() -> None:
        saver = Stuck(file)
        running = asyncio.create_task(stream(graph.compile(checkpointer=saver), {"steps": []}, thread("t"), print))
        await saver.reached.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

    asyncio.run(cut_off())
    app = graph.compile(checkpointer=SqliteCheckpoints(file))
    for _ in range(2):  # then over: the same again
        assert asyncio.run(stream(app, None, thread("t"), print))["steps"] == ["first", "last"]


@pytest.mark.parametrize("delay", range(40))
def test_a_run_that_is_cut_off_anywhere_goes_on(tmp_path: Path, delay: int) -> None:
    graph = StateGraph(Steps)
    for name, after in (("first", "second"), ("second", "last")):
        graph.add_node(name, lambda _, name=name: {"steps": [name]})
        graph.add_conditional_edges(name, lambda _, after=after: after, [after])
    graph.add_node("last", lambda _: {"steps": ["last"]}).add_edge(START, "first")
    app = graph.compile(checkpointer=SqliteCheckpoints(tmp_path / "runs.sqlite"))

    async def cut_off() -> None:
        running = asyncio.create_task(stream(app, {"steps": []}, thread("t"), print))
        await asyncio.sleep(0.0003 * delay)
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running

    asyncio.run(cut_off())
    if app.get_state(thread("t")).values:  # else it was cut off before it began
        assert asyncio.run(stream(app, None, thread("t"), print))["steps"] == ["first", "second", "last"]


@on("llama")
def test_sync_and_async_runs_share_a_file(server: Server, tmp_path: Path) -> None:
    expected = loop().compile(server.url).invoke(QUESTION)
    app = loop().compile(server.url, checkpointer=tmp_path / "runs.sqlite", interrupt_before=["do"])

    async def step(given: Any) -> Any:
        return await app.ainvoke(given, thread("t"))

    async def history() -> list[Any]:
        return [past.values.get("ids") async for past in app.aget_state_history(thread("t"))]

    app.invoke(QUESTION, thread("t"))
    asyncio.run(step(None))
    app.invoke(None, thread("t"))
    state = asyncio.run(step(None))
    assert state["ids"] == expected["ids"]
    assert asyncio.run(app.aget_state(thread("t"))).values == app.get_state(thread("t")).values == state
    assert asyncio.run(history()) == [past.values.get("ids") for past in app.get_state_history(thread("t"))]
    asyncio.run(app.checkpointer.adelete_thread("t"))
    assert not app.get_state(thread("t")).values


@on("llama")
def test_runs_on_several_threads_of_one_file(server: Server, tmp_path: Path) -> None:
    """Two programs with the same file, each with several runs at once, sync and async."""
    questions = {str(number): {"question": f"number {number}?"} for number in range(4)}
    expected = {name: loop().compile(server.url).invoke(question)["ids"] for name, question in questions.items()}
    one, other = (loop().compile(server.url, checkpointer=tmp_path / "runs.sqlite") for _ in range(2))

    async def at_once() -> list[Any]:
        return await asyncio.gather(*(one.ainvoke(question, thread(name)) for name, question in questions.items()))

    def syncs() -> list[Any]:
        return together([lambda n=n, q=q: other.invoke(q, thread(f"{n} too")) for n, q in questions.items()])

    by_async, by_sync = together([lambda: asyncio.run(at_once()), syncs])
    for states in (by_async, by_sync):
        assert [state["ids"] for state in states] == list(expected.values())
    for name, ids in expected.items():
        assert one.get_state(thread(f"{name} too")).values["ids"] == ids == other.get_state(thread(name)).values["ids"]


def test_a_file_that_is_no_database_is_named(tmp_path: Path) -> None:
    wrong = tmp_path / "notes.txt"
    wrong.write_text("These are notes, and no database.\n" * 100)
    for path in (wrong, tmp_path, tmp_path / "no folder" / "runs.sqlite"):
        with pytest.raises(DescantError, match=r"cannot be used \(.+\): name another file\.$") as error:
            SqliteCheckpoints(path)
        assert str(path) in str(error.value)
    assert wrong.read_text().startswith("These are notes")


@on("llama")
def test_any_checkpointer_does(server: Server) -> None:
    app = loop().compile(server.url, checkpointer=InMemorySaver(), interrupt_after=["think"])
    app.invoke(QUESTION, thread("t"))
    for _ in range(ROUNDS):
        state = app.invoke(None, thread("t"))
    assert state["ids"] == loop().compile(server.url).invoke(QUESTION)["ids"]
