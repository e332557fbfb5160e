"""The key between a server and its clients, from the environment."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from descant.runtime.api_key import VARIABLE
from descant.runtime.client import Client
from descant.runtime.errors import DescantError
from descant.runtime.serve import added_options, serve_arguments


@pytest.fixture
def asked() -> Iterator[tuple[str, list[str | None]]]:
    """A server's address, and the Authorization header of each request to it."""
    seen: list[str | None] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            seen.append(self.headers.get("Authorization"))
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"{}")

        def log_message(self, *_: object) -> None: ...

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}", seen
        server.shutdown()


def test_a_client_sends_the_key(asked: tuple[str, list[str | None]], monkeypatch: pytest.MonkeyPatch) -> None:
    url, seen = asked
    monkeypatch.delenv(VARIABLE, raising=False)
    for key, variable in ((None, None), (None, ""), (None, "from-outside"), ("given", "from-outside")):
        if variable is not None:
            monkeypatch.setenv(VARIABLE, variable)
        with Client(url, key=key) as client:
            client.server_info()
    assert seen == [None, None, "Bearer from-outside", "Bearer given"]


@pytest.mark.parametrize("key", ["two words", "a\nb", "schlüssel"])
def test_a_key_that_no_header_can_hold_is_refused(key: str) -> None:
    with pytest.raises(DescantError, match="cannot be sent"):
        Client("http://127.0.0.1:1", key=key)


def test_serve_passes_the_key_on_and_never_shows_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "secret")
    line = serve_arguments(["m"])
    assert line[line.index("--api-key") + 1] == "secret"
    assert "secret" not in added_options(["m"])  # what is printed
    for own in (["--api-key", "mine"], ["--api-key=mine"]):
        assert "secret" not in serve_arguments(["m", *own])
