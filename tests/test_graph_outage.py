"""Runs that are cancelled, and runs whose server goes away."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import engine
import pytest
import sglang as sgl
import tiny
from deployments import DEPLOYMENTS, on
from engine import Server, aborting, idle
from graphs import FOREVER, QUESTION, do, loop, thread
from test_session_outage import _server

from descant.runtime.session import InterruptedTurn, RequestError


def long(s: Any, question: str) -> None:
    s += sgl.gen("thought", max_tokens=FOREVER)


def long_in_forks(s: Any, question: str) -> None:
    one, other = s.fork(2)
    (inner,) = one.fork(1)
    inner += sgl.gen("thought", max_tokens=FOREVER)
    other += sgl.gen("thought", max_tokens=FOREVER)
    inner.text()


@on("roomy")
@pytest.mark.parametrize(("think", "requests"), [(long, 1), (long_in_forks, 2)])
def test_cancelling_an_async_run_aborts_what_it_asked_for(
    server: Server, tmp_path: Path, think: Any, requests: int
) -> None:
    app = loop(think=think).compile(server.url, checkpointer=tmp_path / "runs.sqlite")
    threads = threading.active_count()

    async def run() -> None:
        begun = asyncio.Event()

        async def watch() -> None:
            async for event in app.astream(QUESTION, thread("t"), stream_mode="custom"):
                if event["event"] == "text":
                    begun.set()

        task = asyncio.create_task(watch())
        await asyncio.wait_for(begun.wait(), 20)
        assert not await asyncio.to_thread(idle, server)
        await asyncio.sleep(0.5)  # until the forks speak, too
        start = time.monotonic()
        with aborting(server, requests):
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert time.monotonic() - start < 1.5

    asyncio.run(run())
    assert [step["node"] for step in app.get_state(thread("t")).values["steps"]] == ["opening"]
    assert threading.active_count() <= threads + 2  # steps' threads wait for the next step


@on("roomy")
def test_cancelled_before_it_generates(server: Server) -> None:
    """The turn that begins after the cancellation is ended, too."""
    begun, go_on = threading.Event(), threading.Event()

    def late(s: Any) -> None:
        begun.set()
        go_on.wait(20)
        s += sgl.gen("thought", max_tokens=FOREVER)

    async def run() -> None:
        task = asyncio.create_task(loop(think=late).compile(server.url).ainvoke(QUESTION))
        await asyncio.to_thread(begun.wait)
        task.cancel()
        await asyncio.sleep(0.1)
        go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(task, 3)
        assert idle(server)

    asyncio.run(run())


@on("roomy")
def test_leaving_an_async_stream_early_ends_the_run(server: Server) -> None:
    app = loop(think=long).compile(server.url)

    async def run() -> None:
        told = app.astream(QUESTION, stream_mode="custom")
        while (await anext(told))["event"] != "text":
            pass
        start = time.monotonic()
        with aborting(server):
            await told.aclose()
            assert time.monotonic() - start < 1.5

    asyncio.run(run())


@on("llama")
@pytest.mark.parametrize("way", ["invoke", "stream"])
def test_ctrl_c_in_a_sync_run_ends_the_turn_and_goes_on_as_ctrl_c(server: Server, way: str) -> None:
    """In `invoke` at once; in `stream` LangGraph first waits for the node, and so for its turn."""

    def interrupted(s: Any) -> None:
        signal.raise_signal(signal.SIGINT) if way == "invoke" else os.kill(os.getpid(), signal.SIGINT)
        s += sgl.gen("thought", max_tokens=20)

    app = loop(think=interrupted).compile(server.url)
    with pytest.raises(KeyboardInterrupt):
        app.invoke(QUESTION) if way == "invoke" else list(app.stream(QUESTION, stream_mode="custom"))
    assert idle(server)


def test_a_run_goes_on_when_its_server_is_back(
    checkpoint: Callable[[str], tiny.Checkpoint], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, room = checkpoint("roomy"), DEPLOYMENTS["roomy"]
    first = _server(made, tmp_path / "first.log", **room)
    kill = threading.Event()

    def dying(s: Any, thought: str, round: int) -> Any:
        if round == 2 and not kill.is_set():
            kill.set()
            os.killpg(first.process.pid, signal.SIGKILL)
        return do(s, thought)

    try:
        port = int(first.url.rsplit(":", 1)[1])
        expected = loop().compile(first.url).invoke(QUESTION)
        app = loop(do=dying).compile(first.url, checkpointer=tmp_path / "runs.sqlite")
        with pytest.raises(RequestError) as error:
            app.invoke(QUESTION, thread("t"))
        assert re.fullmatch(r"The server at .+: see its log\.", str(error.value))
        with pytest.raises(RequestError, match="cannot be reached"):
            app.invoke(None, thread("t"))

        stood = app.get_state(thread("t"))
        assert stood.next == ("do",)
        assert [step["node"] for step in stood.values["steps"]] == ["opening", "think", "do", "think"]
        again = loop().compile(first.url, checkpointer=tmp_path / "runs.sqlite", retry_for=180)
    finally:
        first.stop()
    with ThreadPoolExecutor() as threads:
        waiting = threads.submit(again.invoke, None, thread("t"))
        monkeypatch.setattr(engine, "free_port", lambda: port)
        second = _server(made, tmp_path / "second.log", **room)
        try:
            state = waiting.result(60)
            assert state["ids"] == expected["ids"]
            assert state["notes"] == expected["notes"]
            # The cache was lost, not the trajectory.
            assert state["steps"][4]["turns"][0]["cached_tokens"] == 0
            assert state["steps"][5]["turns"][0]["cached_tokens"] > 0

            # It dies in the middle of an answer.
            endless = loop(think=long).compile(second.url, checkpointer=tmp_path / "runs.sqlite")
            told = endless.stream(QUESTION, thread("u"), stream_mode="custom")
            while next(told)["event"] != "text":
                pass
            os.killpg(second.process.pid, signal.SIGKILL)
            with pytest.raises(InterruptedTurn, match=r"broke off its answer .*after \d+ tokens: see its log\."):
                list(told)
        finally:
            second.stop()
