"""What a session does when its server goes away, hangs, comes back, or has no tokenizer."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import engine
import pytest
import tiny

from descant.runtime import protocol
from descant.runtime.client import AsyncClient, Client
from descant.runtime.protocol import Answer
from descant.runtime.session import (
    AsyncSession,
    InterruptedTurn,
    RequestError,
    Session,
    Turn,
    TurnCancelled,
    TurnTimeout,
)

LONG = {"ignore_eos": True, "temperature": 0}
PROMPT = [2 + (7 * i) % 400 for i in range(50)]


def ask(url: str, retry_for: float = 0.0, **arguments: Any) -> Turn:
    """One turn of a session."""
    with Client(url, retry_for=retry_for) as client:
        return Session(client, PROMPT).generate(None, **arguments)


def ask_async(url: str, retry_for: float = 0.0, **arguments: Any) -> Turn:
    """The same turn of an async session."""

    async def turn() -> Turn:
        async with AsyncClient(url, retry_for=retry_for) as client:
            return await AsyncSession(client, PROMPT).generate(None, **arguments)

    return asyncio.run(turn())


both = pytest.mark.parametrize("ask", [ask, ask_async])


def event(ids: Sequence[int], text: str, total: int, finish: Any = None, **meta: Any) -> bytes:
    meta = {"completion_tokens": total, "cached_tokens": 0, "finish_reason": finish, **meta}
    data = json.dumps({"output_ids": ids, "text": text, "meta_info": meta}, ensure_ascii=False)
    return f"data: {data}\n\n".encode()


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield listener


def url_of(listener: socket.socket) -> str:
    return f"http://127.0.0.1:{listener.getsockname()[1]}"


def once(listener: socket.socket, answer: bytes) -> list[bytes]:
    """In a thread: read each request, say `answer`, and close; the returned list has what each asked for."""
    requests: list[bytes] = []

    def serve() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection:
                requests.append(connection.recv(65536).split(b" HTTP")[0])
                connection.sendall(answer)

    threading.Thread(target=serve, daemon=True).start()
    return requests


@both
@pytest.mark.parametrize("had", [b"", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"])
def test_what_was_sent_is_not_sent_again(ask: Callable[..., Turn], listener: socket.socket, had: bytes) -> None:
    requests = once(listener, had)
    with pytest.raises(InterruptedTurn, match=r"broke off its answer \(.+\) after 0 tokens: see its log\.$"):
        ask(url_of(listener), retry_for=5)
    assert requests.count(b"POST /generate") == 1


@both
def test_a_stream_that_breaks_off_leaves_what_had_come(ask: Callable[..., Turn], listener: socket.socket) -> None:
    body = event([5, 6], "ab", 2)
    once(listener, b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n" % (len(body), body))
    with pytest.raises(InterruptedTurn, match="after 2 tokens") as error:
        ask(url_of(listener))
    partial = error.value.partial
    assert (partial.output_ids, partial.text, list(partial.prompt_ids)) == ([5, 6], "ab", PROMPT)


@both
def test_a_server_that_is_not_there_is_waited_for_as_long_as_was_said(ask: Callable[..., Turn]) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = url_of(unused)
        start = time.monotonic()
        with pytest.raises(RequestError, match=r"cannot be reached .+: see its log\.$"):
            ask(url)
        assert time.monotonic() - start < 0.5
        with pytest.raises(RequestError, match="cannot be reached"):
            ask(url, retry_for=1)
        assert 0.5 < time.monotonic() - start < 2
        start = time.monotonic()
        with pytest.raises(TurnTimeout):
            ask(url, retry_for=60, timeout=0.5)
        assert 0.5 <= time.monotonic() - start < 1.5


def test_waiting_can_be_cancelled() -> None:
    with socket.socket() as unused, ThreadPoolExecutor() as threads:
        unused.bind(("127.0.0.1", 0))
        with Client(url_of(unused), retry_for=60) as client:
            session = Session(client, PROMPT)
            turn = threads.submit(session.generate, None)
            time.sleep(0.3)
            session.cancel()
            with pytest.raises(TurnCancelled):
                turn.result(2)


@pytest.mark.parametrize("size", [1, 7, 10**6])
def test_events_are_read_however_they_are_cut(size: int) -> None:
    """Also: text may hold any line separator, and events may bring all ids or the new ones alone."""
    all_of_it = [
        event([5], "a\u2028", 1),
        event([5, 6], "a\u2028é\x85", 2),
        event([5, 6, 1], "a\u2028é\x85", 3, {"type": "stop", "matched": 1}),
    ]
    the_new = [event([5], "a\u2028", 1), event([6], "é\x85", 2), event([1], "", 3, {"type": "stop", "matched": 1})]
    for events in (all_of_it, the_new):
        data = b"".join(events) + b"data: [DONE]\n\n"
        answer = Answer(PROMPT)
        pieces = [answer.feed(data[at : at + size], "") for at in range(0, len(data), size)]
        turn = answer.turn()
        assert "".join(pieces) == turn.text == "a\u2028é\x85"
        assert (turn.output_ids, turn.stop_id, answer.over) == ([5, 6, 1], 1, True)


@both
@pytest.mark.parametrize(
    "body",
    [
        b"<html>Hello</html>",
        b"{}",
        b"[]",
        b"data: not json\n\n",
        b"data: {}\n\n",
        b"data: []\n\n",
        b'data: {"error": "no"}\n\n',
        b'data: {"meta_info": 3}\n\n',
        b'data: {"meta_info": {"finish_reason": null, "cached_tokens": "x"}, "output_ids": [1]}\n\n',
        b'data: {"meta_info": {"finish_reason": null}, "output_ids": "ab"}\n\n',
    ],
)
def test_what_streams_something_else_is_no_server(
    ask: Callable[..., Turn], listener: socket.socket, body: bytes
) -> None:
    once(listener, b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n" + body)
    with pytest.raises(RequestError, match=f"^What answers at {url_of(listener)} is no SGLang server: /generate "):
        ask(url_of(listener))


@both
def test_a_page_that_says_no_is_not_repeated(ask: Callable[..., Turn], listener: socket.socket) -> None:
    body = b"<!DOCTYPE html><title>Oh</title>"
    once(listener, b"HTTP/1.1 404 Not Found\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s" % (len(body), body))
    with pytest.raises(RequestError, match=r"^The server refused the request: HTTP 404 Not Found$"):
        ask(url_of(listener))


@pytest.mark.parametrize("body", [b"<html>Hello</html>", b"{}", b"[]", b'{"data": [{"id": "m"}]}', b"\xff"])
@pytest.mark.parametrize("call", [protocol.models(), protocol.model_info(), protocol.tokenize("a")])
def test_what_answers_something_else_is_no_server(listener: socket.socket, body: bytes, call: protocol.Call) -> None:
    once(listener, b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s" % (len(body), body))
    with Client(url_of(listener)) as client, pytest.raises(RequestError) as error:
        client.call(call)
    assert str(error.value) == (
        f"What answers at {url_of(listener)} is no SGLang server: {call.path} answers something else; give the "
        "address of one."
    )


def test_what_never_answers_is_left_soon_if_little_was_asked(listener: socket.socket) -> None:
    call = replace(protocol.server_info(), patience=0.2)
    start = time.monotonic()
    with Client(url_of(listener)) as client, pytest.raises(RequestError, match="takes requests, and does not answer"):
        client.call(call)
    assert time.monotonic() - start < 5
    assert protocol.server_info().patience == 30


def _server(checkpoint: tiny.Checkpoint, log: Path, **more: Any) -> engine.Server:
    args = {"model_path": checkpoint.model, "enable_lora": True, "lora_paths": checkpoint.adapters}
    tiny_pool = {"dtype": "float32", "max_total_tokens": 4096, "max_loras_per_batch": 4, "skip_server_warmup": True}
    return engine.Server({**args, **tiny_pool, "kv_sharing": "icarus", **more}, log)


def test_a_server_that_dies_and_comes_back(
    checkpoint: Callable[[str], tiny.Checkpoint], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = checkpoint("llama")
    first = _server(made, tmp_path / "first.log")
    try:
        port = int(first.url.rsplit(":", 1)[1])
        client = Client(first.url, retry_for=180)
        session = Session(client, PROMPT)
        session.generate("plan", max_tokens=8, sampling=LONG)
        before = session.ids

        # It hangs: the turn ends in time all the same.
        os.killpg(first.process.pid, signal.SIGSTOP)
        start = time.monotonic()
        with pytest.raises(TurnTimeout):
            session.generate("plan", max_tokens=8, timeout=1)
        assert time.monotonic() - start < 5
        os.killpg(first.process.pid, signal.SIGCONT)
        assert session.generate("plan", max_tokens=8, sampling=LONG, timeout=60).output_ids
        before = session.ids

        # It dies in mid-stream.
        with pytest.raises(InterruptedTurn, match=r"broke off its answer .* after \d+ tokens") as error:
            session.generate(
                "act", max_tokens=900, sampling=LONG, on_text=lambda _: os.killpg(first.process.pid, signal.SIGKILL)
            )
        assert error.value.partial.output_ids
        assert error.value.partial.text
        assert session.ids == before
    finally:
        first.stop()

    # It comes back, without a tokenizer: a turn that waits for it goes on where the session stood.
    with ThreadPoolExecutor() as threads:
        waiting = threads.submit(session.generate, "act", max_tokens=8, sampling=LONG)
        monkeypatch.setattr(engine, "free_port", lambda: port)
        second = _server(made, tmp_path / "second.log", skip_tokenizer_init=True)
        try:
            turn = waiting.result(60)
            had = error.value.partial.output_ids[:8]
            assert turn.output_ids[: len(had)] == had
            assert (turn.cached_tokens, turn.text) == (0, "")
            assert session.ids == (*before, *turn.output_ids)
            for needs_text in (
                lambda: session.append("text"),
                lambda: session.text(),
                lambda: session.select("act", ["a", "b"]),
                lambda: session.generate("act", stop="x"),
            ):
                with pytest.raises(RequestError, match="tokenizer") as refused:
                    needs_text()
                assert "\n" not in str(refused.value)
            assert session.generate("plan", max_tokens=2, sampling=LONG).prefilled == 1
        finally:
            second.stop()
            client.close()
