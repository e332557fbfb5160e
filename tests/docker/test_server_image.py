"""The server's image, built and run: its entry point on an empty volume up to health, the key, an adapter's answer.

Then the front end's image, and a Prometheus, against it.
"""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import compose
import httpx
import image_checks
import memory
import monitoring
import pytest
import yaml
from buildah import Container, Store
from paths import DOCKER, tool
from timings import note, timed
from waiting import free_port, until_up

pytestmark = pytest.mark.timeout(3600)
KEY = "a-key-that-is-in-no-layer"


@dataclass
class Running:
    container: Container
    port: int
    log: Path
    group: memory.Group

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def post(self, path: str, body: dict, key: str | None = KEY) -> httpx.Response:
        headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        return httpx.post(self.url + path, json=body, headers=headers, timeout=120)


@pytest.fixture(scope="module")
def container(store: Store, server_image: str) -> Iterator[Container]:
    note(f"server's image: {image_checks.size(store, server_image)}")
    with store.container(server_image) as made:
        yield made


@pytest.fixture(scope="module")
def running(container: Container, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """Under the compose file's command and memory limit, on a volume that is as empty as at the first start."""
    folder = tmp_path_factory.mktemp("server")
    service = compose.services(variables={"DESCANT_API_KEY": KEY})["server"]
    port = free_port()
    command = [word.replace("30000", str(port)) for word in service["command"]]
    log = folder / "server.log"
    cache = container.volume(folder / "cache")
    with (
        memory.limited(int(service["deploy"]["resources"]["limits"]["memory"])) as group,
        container.started(log, command, {cache: "/cache"}, service["environment"], group.members) as process,
    ):
        with timed("server's entry point, first start, until /health"):
            until_up(f"http://127.0.0.1:{port}/health", process, log, 900)
        yield Running(container, port, log, group)


def test_user_is_not_root(container: Container) -> None:
    image_checks.check_user(container)


def test_nothing_of_this_machine(store: Store, container: Container, server_image: str) -> None:
    image_checks.check_nothing_of_this_machine(store, container, server_image)


def test_health_check_of_the_image(running: Running) -> None:
    assert running.container.healthy(running.container.health_check("30000", str(running.port)))
    assert not running.container.healthy(running.container.health_check("30000", str(free_port())))


def test_without_the_key_nothing_is_answered(running: Running) -> None:
    body = {"text": "The capital of France is", "sampling_params": {"max_new_tokens": 4}}
    for key in (None, "descant-local"):
        assert running.post("/generate", body, key).status_code == 401
    assert httpx.get(f"{running.url}/v1/models").status_code == 401


def test_an_adapter_answers(running: Running) -> None:
    body = {"text": "The capital of France is", "lora_path": "act", "sampling_params": {"max_new_tokens": 8}}
    with timed("server: 8 tokens by act"):
        answer = running.post("/generate", body)
    assert answer.status_code == 200
    assert answer.json()["text"].strip()
    assert answer.json()["meta_info"]["completion_tokens"] == 8


def test_operators_were_compiled_into_the_volume(running: Running) -> None:
    assert "could not be compiled" not in running.log.read_text()
    assert list((running.log.parent / "cache/descant").glob("operators-*.so"))


def test_front_end_runs_a_graph_on_it(store: Store, ui_image: str, running: Running, tmp_path: Path) -> None:
    port = free_port()
    service = compose.services(variables={"DESCANT_API_KEY": KEY, "DESCANT_UI_PORT": str(port)})["ui"]
    command = [word.replace("http://server:30000", running.url) for word in service["command"]]
    log = tmp_path / "ui.log"
    page = f"http://127.0.0.1:{port}"
    with (
        store.container(ui_image) as container,
        container.started(
            log, command, {container.volume(tmp_path / "data"): "/data"}, service["environment"]
        ) as process,
    ):
        until_up(f"{page}/health", process, log, 60)
        asked = {"workflow": "plan-act-reflect", "question": "Is the capital of Portugal larger than that of Norway?"}
        with timed("front end: a question through plan-act-reflect"):
            begun = httpx.post(f"{page}/api/runs", json=asked, timeout=60)
            assert begun.status_code == 201, begun.text
            with httpx.stream("GET", f"{page}/api/runs/{begun.json()['thread']}/events", timeout=300) as events:
                told = [json.loads(line[6:]) for line in events.iter_lines() if line.startswith("data: ")]
        assert told, log.read_text()
        note(f"front end's events: {[event.get('type') for event in told if event.get('type') != 'token'][:12]}")
        assert told[-1].get("type") != "error", told[-1]


def test_dashboard_shows_only_what_the_server_counts(running: Running) -> None:
    lines = httpx.get(f"{running.url}/metrics").text.splitlines()
    there = {line.split("{")[0].split()[0] for line in lines if line and not line.startswith("#")}
    assert monitoring.metrics() <= there


def test_prometheus_answers_every_panel(running: Running, tmp_path: Path) -> None:
    """Debian's Prometheus under our configuration, its one target where the server is."""
    config = yaml.safe_load((DOCKER / "prometheus.yml").read_text())
    config["scrape_configs"][0]["static_configs"][0]["targets"] = [f"127.0.0.1:{running.port}"]
    (tmp_path / "prometheus.yml").write_text(yaml.safe_dump(config))
    port = free_port()
    options = (f"--config.file={tmp_path / 'prometheus.yml'}", f"--storage.tsdb.path={tmp_path / 'data'}")
    with (tmp_path / "prometheus.log").open("wb") as log:
        process = subprocess.Popen(
            [tool("prometheus"), *options, f"--web.listen-address=127.0.0.1:{port}"],
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    try:
        until_up(f"http://127.0.0.1:{port}/-/healthy", process, tmp_path / "prometheus.log", 60)
        end = time.monotonic() + 60
        missing = monitoring.expressions()
        while missing and time.monotonic() < end:
            running.post(
                "/generate", {"text": "Paris is", "lora_path": "plan", "sampling_params": {"max_new_tokens": 2}}
            )
            time.sleep(3)
            missing = [expression for expression in missing if not _result(port, expression)]
        assert missing == []
    finally:
        process.terminate()
        process.wait(30)


def _result(port: int, expression: str) -> list:
    answer = httpx.get(f"http://127.0.0.1:{port}/api/v1/query", params={"query": expression})
    assert answer.status_code == 200, answer.text
    result: list = answer.json()["data"]["result"]
    return result


def test_memory_and_the_log_at_the_end(running: Running) -> None:
    resident, peak = running.group.resident() / 2**30, running.group.peak() / 2**30
    note(f"server: {resident:.1f} GiB of its own, peak with the files that it read {peak:.1f} GiB")
    assert KEY not in running.log.read_text()
