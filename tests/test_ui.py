"""The page's backend on the real engine: runs as server-sent events, from the beginning, live and out of the store."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn
from commands import refused, wait_for
from deployments import on
from engine import Server, free_port, idle

from descant.runtime.errors import DescantError
from descant.workflows.checkpoints import SqliteCheckpoints
from descant.workflows.ui.app import create_app
from descant.workflows.ui.page import Page

QUESTION = "Which city is larger?"
GRAPHS = ("react", "reflexion", "plan-act-reflect")


@contextmanager
def shown(url: str, folder: Path, **page: Any) -> Iterator[httpx.Client]:
    """The page on a real socket, as `descant ui` serves it."""
    app = create_app(Page(url, **page), SqliteCheckpoints(folder / "runs.sqlite"), ("127.0.0.1",))
    port = free_port()
    config = uvicorn.Config(app, port=port, log_level="warning", timeout_graceful_shutdown=1)
    served = uvicorn.Server(config)
    thread = threading.Thread(target=served.run)
    thread.start()
    try:
        while not served.started:
            time.sleep(0.01)
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60, trust_env=False) as client:
            yield client
    finally:
        served.should_exit = True
        thread.join()


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DESCANT_CACHE", str(tmp_path / "cache"))  # its locks


def begun(page: httpx.Client, workflow: str, question: str = QUESTION) -> str:
    answer = page.post("/api/runs", json={"workflow": workflow, "question": question})
    assert answer.status_code == 201, answer.text
    return str(answer.json()["thread"])


def events(page: httpx.Client, thread: str, after: int | None = None) -> Iterator[dict[str, Any]]:
    """Those of a run as they come."""
    headers = {} if after is None else {"Last-Event-ID": str(after)}
    number = -1 if after is None else after
    with page.stream("GET", f"/api/runs/{thread}/events", headers=headers) as stream:
        assert stream.headers["content-type"].startswith("text/event-stream")
        for line in stream.iter_lines():
            if line.startswith("data: "):
                event = json.loads(line[6:])
            elif line.startswith("id: "):
                number += 1
                assert line == f"id: {number}"
                yield event


def of(kind: str, told: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [event for event in told if event["event"] == kind]


def check_is_whole(told: list[dict[str, Any]]) -> None:
    """Steps stand one after the other, each with an estimate a turn, and the texts are what the turns say."""
    end = 0
    for step in of("step", told):
        assert step["start"] == end
        end += step["tokens"]
    ends = of("turn_end", told)
    assert sum(len(step["alone"]) for step in of("step", told)) == len(ends) > 0
    assert all(0 <= turn["cached_tokens"] < turn["prompt_tokens"] for turn in ends)
    assert told[0]["event"] == "run"
    assert told[-1]["event"] == "result"
    assert told[-1]["prompt_tokens"] == sum(turn["prompt_tokens"] for turn in ends)
    assert not {"output_ids", "sampling"} & {key for turn in ends for key in turn}


def spoken(told: list[dict[str, Any]]) -> list[tuple[Any, str]]:
    """Who wrote what, step by step: all that is appended to the trajectory behind the opening."""
    parts: list[tuple[Any, str]] = []
    text = ""
    for event in told:
        if event["event"] == "turn":
            text += event["cue"]
        elif event["event"] in ("text", "written"):
            text += event["text"]
        elif event["event"] == "step":
            parts.append((event["agent"], text))
            text = ""
    return parts


@on("roomy")
@pytest.mark.parametrize("workflow", GRAPHS)
def test_a_run_is_told_live_again_and_out_of_the_store(server: Server, tmp_path: Path, workflow: str) -> None:
    with shown(server.url, tmp_path) as page:
        thread = begun(page, workflow)
        live = list(events(page, thread))
        again = list(events(page, thread))
        from_the_middle = list(events(page, thread, after=4))
        (line,) = page.get("/api/runs").json()
    assert live == again
    assert from_the_middle == live[5:]
    check_is_whole(live)
    assert (line["thread"], line["status"], line["answer"]) == (thread, "ended", live[-1]["answer"])
    offered = {one["name"]: one["agents"] for one in Page(server.url).offered()["workflows"]}
    assert offered[workflow] == live[0]["agents"]
    with shown(server.url, tmp_path) as page:  # another process, as far as the runs are concerned
        assert page.get("/api/runs").json()[0]["answer"] == line["answer"]
        stored = list(events(page, thread))
    check_is_whole(stored)
    for kind in ("step", "turn_end"):
        assert of(kind, stored) == of(kind, live)
    assert {**stored[-1], "state": None} == {**live[-1], "state": None}
    assert spoken(stored) == spoken(live)
    kept = [{**event, "seconds": 0} for event in of("observation", stored)]
    assert kept == [{**event, "seconds": 0} for event in of("observation", live)]


@on("roomy")
def test_who_leaves_does_not_end_a_run_and_two_run_at_once(server: Server, tmp_path: Path) -> None:
    with shown(server.url, tmp_path) as page:
        one, other = begun(page, "react"), begun(page, "plan-act-reflect", "Another question?")
        for _ in events(page, one):
            break  # the tab is closed
        for thread in (one, other):
            told = list(events(page, thread))
            check_is_whole(told)
            assert told[0]["thread"] == thread
        assert {line["question"] for line in page.get("/api/runs").json()} == {QUESTION, "Another question?"}


@on("roomy")
def test_a_run_that_was_stopped_goes_on(server: Server, tmp_path: Path) -> None:
    with shown(server.url, tmp_path) as page:
        thread = begun(page, "reflexion")
        told = []
        for event in events(page, thread):
            told.append(event)
            if event["event"] == "text" and len(of("step", told)) >= 3:
                assert page.post(f"/api/runs/{thread}/stop").status_code == 202
                break
        assert list(events(page, thread))[-1] == {"event": "stopped", "resumable": True}
        assert page.post(f"/api/runs/{thread}/stop").status_code == 409
        wait_for(lambda: idle(server), 5)  # the turn has ended on the server, too
        assert page.post(f"/api/runs/{thread}/resume").status_code == 202
        whole = list(events(page, thread))
        check_is_whole([event for event in whole if event["event"] != "resumed"])
        assert len(of("resumed", whole)) == 1
        assert page.post(f"/api/runs/{thread}/resume").status_code == 409
        straight = begun(page, "reflexion")
        assert of("step", whole) == of("step", list(events(page, straight)))
    with shown(server.url, tmp_path) as page:  # stopped by the end of the page itself
        thread = begun(page, "reflexion")
        for event in events(page, thread):
            if event["event"] == "text":
                break
    with shown(server.url, tmp_path) as page:
        line = next(line for line in page.get("/api/runs").json() if line["thread"] == thread)
        assert (line["status"], line["resumable"]) == ("cut off", True)
        assert page.post(f"/api/runs/{thread}/resume").status_code == 202
        check_is_whole([event for event in events(page, thread) if event["event"] != "resumed"])


@on("roomy")
def test_what_it_refuses(server: Server, tmp_path: Path) -> None:
    def detail(answer: httpx.Response, status: int) -> str:
        assert answer.status_code == status, answer.text
        return str(answer.json()["detail"])

    def ask(page: httpx.Client, **asked: Any) -> httpx.Response:
        return page.post("/api/runs", json={"workflow": "react", "question": QUESTION, **asked})

    with shown(server.url, tmp_path, adapters={"act": "gone"}) as page:
        wanted = "The server has no adapter 'gone': its adapters are"
        assert detail(ask(page), 400).startswith(wanted)
        report = page.get("/api/server").json()
        assert report["up"]
        assert report["message"].startswith("The server has no adapter gone: start it with --lora-paths gone=…")
        assert "question" in detail(ask(page, question=" \n"), 400)
        assert "2000 at most" in detail(ask(page, question="x" * 2001), 400)
        assert "no graph 'nonsense'" in detail(ask(page, workflow="nonsense"), 400)
        assert ask(page, question=None).status_code == 422
        assert detail(page.get("/api/runs/none/events"), 404).startswith("There is no run none")
        assert page.post("/api/runs/none/resume").status_code == page.post("/api/runs/none/stop").status_code == 404
        assert page.get("/", headers={"Host": "elsewhere.example"}).status_code == 400
        form = page.post(
            "/api/runs", content='{"workflow":"react","question":"q"}', headers={"Content-Type": "text/plain"}
        )
        assert form.status_code == 422  # a foreign page can send no JSON
        assert page.get("/api/runs").json() == []
    with shown(f"http://127.0.0.1:{free_port()}", tmp_path) as page:
        assert "cannot be reached" in detail(ask(page), 503)
        report = page.get("/api/server").json()
        assert not report["up"]
        assert "cannot be reached" in report["message"]
        assert page.get("/health").status_code == 200
    with shown(server.url, tmp_path, adapters={"act": ""}) as page:
        report = page.get("/api/server").json()
        assert (report["message"], report["scheme"], report["context"]) == (None, "icarus", 8192)
        told = list(events(page, begun(page, "react")))
        assert told[0]["agents"]["act"] is None


def test_a_role_that_no_graph_has() -> None:
    with pytest.raises(DescantError, match="No graph has an agent boss"):
        Page("http://127.0.0.1:1", {"boss": "plan"})


def test_the_command_refuses_in_a_sentence() -> None:
    assert refused("ui", "--adapters", "boss=plan", "--server", "http://127.0.0.1:1").startswith(
        "No graph has an agent"
    )
    assert refused("ui", "--server", "http://127.0.0.1:1", "--model", ".").startswith(
        "The server has its model already"
    )
    assert "give another --port" in refused("ui", "--server", "http://127.0.0.1:1", "--host", "192.0.2.1")
