"""Search and Lookup over Wikipedia's API, as a real server on the loopback address speaks it."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from langchain_core.tools import BaseTool

from descant.agents.tool import call
from descant.agents.tool_state import restore, save
from descant.agents.tools.wikipedia import Wikipedia

EXTRACTS = {
    "Lule River": "The Lule River is in Sweden. It is long.\n\n== Course ==\nIt rises in the mountains.\n"
    "=== Dams ===\nIt has dams.",
    "Mountain": "A mountain is high.",
}
REDIRECTS = {"Luleälven": "Lule River"}


class Api(BaseHTTPRequestHandler):
    """action=query with prop=extracts or list=search, in format version 2."""

    protocol_version = "HTTP/1.1"
    requests: list[tuple[str, dict[str, str]]] = []  # noqa: RUF012

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        asked = {key: values[0] for key, values in parse_qs(url.query).items()}
        self.requests.append((self.headers["User-Agent"], asked))
        assert url.path == "/w/api.php"
        assert (asked["action"], asked["format"], asked["formatversion"]) == ("query", "json", "2")
        title = asked.get("titles") or asked["srsearch"]
        if title == "slow":
            time.sleep(1.5)
            return None  # the client is gone
        if title == "busy":
            return self.answer(429, "Too many requests")
        if title == "html":
            return self.answer(200, "<html>maintenance</html>")
        if title == "list":
            return self.answer(200, "[]")
        if title == "broken":
            return self.answer(200, json.dumps({"error": {"code": "internal", "info": "A database\nis read-only."}}))
        if asked.get("list") == "search":
            found = [{"ns": 0, "title": name} for name in EXTRACTS if title.split()[0].lower() in name.lower()]
            return self.answer(200, json.dumps({"query": {"search": found[: int(asked["srlimit"])]}}))
        assert (asked["prop"], asked["explaintext"], asked["redirects"]) == ("extracts", "1", "1")
        name = REDIRECTS.get(title, title)
        page: dict[str, Any] = {"ns": 0, "title": name}
        page |= {"pageid": 1, "extract": EXTRACTS[name]} if name in EXTRACTS else {"missing": True}
        if "[" in title:
            page = {"title": title, "invalidreason": "…", "invalid": True}
        return self.answer(200, json.dumps({"batchcomplete": True, "query": {"pages": [page]}}))

    def answer(self, status: int, text: str) -> None:
        body = text.encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: Any) -> None: ...


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Api)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NO_PROXY", "127.0.0.1")
        yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@pytest.fixture
def tools(url: str) -> list[BaseTool]:
    Api.requests.clear()
    return Wikipedia(base_url=url, user_agent="test (me@example.org)", timeout=1).tools()


def test_search_and_lookup_read_an_article(tools: list[BaseTool]) -> None:
    search, lookup = tools
    opening = "The Lule River is in Sweden. It is long. It rises in the mountains. It has dams."
    assert call(search, "Lule River").text == opening
    assert call(lookup, "it").text == "(Result 1 / 3) It is long."
    assert call(lookup, "dams").text == "(Result 1 / 1) It has dams."
    assert len(Api.requests) == 1, "the article is fetched once"
    assert {agent for agent, _ in Api.requests} == {"test (me@example.org)"}


def test_redirects_and_another_case_are_found(tools: list[BaseTool]) -> None:
    search, lookup = tools
    assert call(search, "Luleälven").text.startswith("The Lule River is")
    assert call(search, "lule river").text.startswith("The Lule River is")
    assert call(lookup, "long").text == "(Result 1 / 1) It is long."


@pytest.mark.parametrize("entity", ["Lule lake", "Lule|Mountain", "lule [river]"])
def test_an_unknown_title_brings_what_a_search_finds(tools: list[BaseTool], entity: str) -> None:
    seen = call(tools[0], entity)
    assert seen.ok
    assert seen.text.endswith("Similar: ['Lule River']") == (entity != "Lule|Mountain")
    assert call(tools[0], "nothing like it").text == "Could not find nothing like it."


@pytest.mark.parametrize(
    ("entity", "text"),
    [
        ("busy", "Search failed: 127.0.0.1 answers HTTP 429."),
        ("html", "Search failed: 127.0.0.1 does not answer as MediaWiki's API does."),
        ("list", "Search failed: 127.0.0.1 does not answer as MediaWiki's API does."),
        ("broken", "Search failed: 127.0.0.1 answers: A database is read-only."),
        ("slow", "Search failed: 127.0.0.1 cannot be reached (timed out)."),
    ],
)
def test_a_failing_site_is_an_observation(tools: list[BaseTool], entity: str, text: str) -> None:
    seen = call(tools[0], entity)
    assert (seen.text, seen.ok) == (text, False)
    assert seen.seconds < 3


def test_nobody_there_is_an_observation() -> None:
    seen = call(Wikipedia(base_url="http://127.0.0.1:9").tools()[0], "Lule River")
    assert seen.text.startswith("Search failed: 127.0.0.1 cannot be reached (")


def test_a_run_goes_on_with_the_article_fetched_again(tools: list[BaseTool], url: str) -> None:
    call(tools[0], "Luleälven")
    call(tools[1], "it")
    later = Wikipedia(base_url=url).tools()
    restore(later, save(tools))
    assert call(later[1], "it").text == "(Result 2 / 3) It rises in the mountains."


def test_a_language_is_a_site() -> None:
    assert Wikipedia(language="pt")._http.base_url == "https://pt.wikipedia.org"
