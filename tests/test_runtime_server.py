"""Starting and stopping a real server, and talking ids to it."""

from __future__ import annotations

import _thread
import shutil
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
import tiny

from descant.runtime import server as server_module
from descant.runtime.client import Client, RequestError
from descant.runtime.server import Server, ServerError
from descant.runtime.turn import Unreachable

OPTIONS = ("--dtype", "float32", "--max-total-tokens", "4096")
PROMPT = [2 + (7 * i) % 400 for i in range(50)]
GREEDY = {"temperature": 0, "max_new_tokens": 8, "ignore_eos": True}


@pytest.fixture
def logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[Path]]:
    """The logs that servers without one of their own have left."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return lambda: list(tmp_path.glob("descant-server-*.log"))


def test_a_server_that_cannot_start_says_why_and_leaves_its_log_alone(
    logs: Callable[[], list[Path]], tmp_path: Path
) -> None:
    before = set(psutil.Process().children(recursive=True))
    with pytest.raises(ServerError) as error, Server(tmp_path / "no-model"):
        pass
    assert "before it was ready" in str(error.value)
    assert "no-model" in str(error.value)
    assert set(psutil.Process().children(recursive=True)) <= before
    (log,) = logs()
    assert str(log) in str(error.value)


def test_no_log_is_left_of_a_start_that_was_interrupted(logs: Callable[[], list[Path]], tmp_path: Path) -> None:
    """Nor of a server that was ended in order: test_demo.py has those."""
    threading.Timer(1.0, _thread.interrupt_main).start()
    with pytest.raises(KeyboardInterrupt), Server(tmp_path / "no-model"):
        pass
    assert not logs()


def test_a_taken_port_is_not_the_end(
    checkpoint: Callable[[str], tiny.Checkpoint],
    logs: Callable[[], list[Path]],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Also: the log of a server that died is kept, and named even where the block ends well."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        ports = iter([taken.getsockname()[1], server_module._free_port()])
        monkeypatch.setattr(server_module, "_free_port", lambda: next(ports))
        with Server(checkpoint("llama").model, options=OPTIONS) as server, Client(server.url) as client:
            assert client.generate(PROMPT, sampling_params=GREEDY).output_ids
            psutil.Process(server.pid).terminate()
            with pytest.raises(ServerError) as error:
                checked_for_ever(server)
    assert logs() == [server.log]
    assert str(server.log) in str(error.value)
    assert f"its log is {server.log}" in caplog.text


def test_a_log_that_a_clients_error_sends_to_is_kept(
    checkpoint: Callable[[str], tiny.Checkpoint],
    logs: Callable[[], list[Path]],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Also of a server that lives on."""
    monkeypatch.setattr(server_module, "DYING_S", 0.5)
    with Server(checkpoint("llama").model, options=OPTIONS) as server:
        server.check(RequestError("The server refused it."))
        server.check(Unreachable(f"The server at {server.url} cannot be reached: see its log."))
    assert logs() == [server.log]
    assert f"The server's log is {server.log}" in caplog.text


def checked_for_ever(server: Server) -> None:
    while True:
        server.check()
        time.sleep(0.1)


@pytest.fixture(scope="module")
def client(checkpoint: Callable[[str], tiny.Checkpoint], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    """Of a server whose model has no chat template."""
    made = checkpoint("llama")
    model = shutil.copytree(made.model, tmp_path_factory.mktemp("plain") / "model")
    (model / "chat_template.jinja").unlink()
    with Server(model, made.adapters, options=OPTIONS) as server, Client(server.url) as client:
        yield client


def test_what_streams_is_what_is_returned(client: Client) -> None:
    pieces: list[str] = []
    turn = client.generate(PROMPT, adapter="plan", sampling_params=GREEDY, on_text=pieces.append)
    assert len(turn.output_ids) == 8
    assert "".join(pieces) == turn.text
    assert turn.stop_id is None
    assert turn.prompt_tokens == len(PROMPT)
    assert 0 < turn.ttft < turn.latency


def test_returned_ids_are_a_hit_for_the_next_agent(client: Client) -> None:
    prompt = [3, *PROMPT]
    first = client.generate(prompt, adapter="plan", sampling_params=GREEDY)
    assert (first.cached_tokens, first.cross_agent) == (0, 0)
    longer = [*prompt, *first.output_ids, 9]
    second = client.generate(longer, adapter="act", sampling_params=GREEDY)
    # The last sampled id was never processed, and the new one is new.
    assert second.cached_tokens == second.cross_agent == len(longer) - 2
    assert second.prefilled == 2
    totals = client.server_info()["internal_states"][0]["kv_sharing_totals"]
    assert {"writer": "plan", "reader": "act", "tokens": len(longer) - 2} in totals["by_writer_reader"]


def test_a_stop_token_is_named(client: Client) -> None:
    free = client.generate(PROMPT, sampling_params=GREEDY)
    stop = free.output_ids[3]
    turn = client.generate(PROMPT, sampling_params={**GREEDY, "stop_token_ids": [stop], "ignore_eos": False})
    assert turn.stop_id == stop
    assert turn.output_ids == free.output_ids[: free.output_ids.index(stop) + 1]


@pytest.mark.parametrize(
    ("ids", "adapter", "word"),
    [(PROMPT, "nobody", "nobody"), (PROMPT * 50, "plan", "long"), ([10**7], None, "vocab"), ([], None, "empty")],
)
def test_a_refusal_is_one_sentence_and_the_server_goes_on(
    client: Client, ids: list[int], adapter: str | None, word: str
) -> None:
    with pytest.raises(RequestError) as error:
        client.generate(ids, adapter=adapter, sampling_params=GREEDY)
    assert word in str(error.value)
    assert "\n" not in str(error.value)
    assert client.generate(PROMPT, sampling_params=GREEDY).output_ids


def test_text_becomes_ids(client: Client) -> None:
    assert client.tokenize("the planner") != client.tokenize("the actor")


def test_a_model_without_a_chat_template_is_named(client: Client) -> None:
    with pytest.raises(RequestError, match="chat template"):
        client.tokenize_chat([{"role": "user", "content": "Hello"}])


def test_no_server_is_one_sentence() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        with (
            Client(f"http://127.0.0.1:{unused.getsockname()[1]}") as client,
            pytest.raises(RequestError, match=r"cannot be reached .+: see its log\.$"),
        ):
            client.generate(PROMPT)
