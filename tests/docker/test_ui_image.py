"""The front end's image, built and run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import compose
import httpx
import image_checks
import pytest
from buildah import BASE, Container, Store
from memory import limited
from timings import note, timed
from waiting import free_port, until_up

pytestmark = pytest.mark.timeout(1800)


@pytest.fixture(scope="module")
def container(store: Store, ui_image: str) -> Iterator[Container]:
    note(f"front end's image: {image_checks.size(store, ui_image)}, its base: {image_checks.size(store, BASE)}")
    with store.container(ui_image) as made:
        yield made


def test_user_is_not_root(container: Container) -> None:
    image_checks.check_user(container)


def test_no_torch_and_no_compiler(container: Container) -> None:
    code = (
        "import importlib.util as u; print([m for m in ('torch', 'transformers', 'triton', 'pip') if u.find_spec(m)])"
    )
    assert container.run("python", "-c", code).stdout.strip() == "[]"
    assert container.run("sh", "-c", "command -v g++ gcc cc").stdout == ""


def test_packages_go_together(container: Container) -> None:
    """All that the graphs of agents import is there, SGLang's frontend language among it."""
    code = "import descant; print([bool(getattr(descant, name)) for name in descant.__all__ if name != 'Server'])"
    done = container.run("python", "-c", code)
    assert done.returncode == 0, done.stderr
    assert container.run("descant", "--help").returncode == 0


def test_nothing_of_this_machine(store: Store, container: Container, ui_image: str) -> None:
    image_checks.check_nothing_of_this_machine(store, container, ui_image)


def test_entry_point_ends_with_a_page_at_the_printed_address(container: Container, work: Path, tmp_path: Path) -> None:
    """Under the memory limit of the compose file, with the command of the compose file; its server is not there."""
    port = free_port()
    service = compose.services(variables={"DESCANT_UI_PORT": str(port)})["ui"]
    log = tmp_path / "ui.log"
    data = container.volume(tmp_path / "data")
    environment = service["environment"]
    with (
        limited(int(service["deploy"]["resources"]["limits"]["memory"])) as group,
        container.started(log, service["command"], {data: "/data"}, environment, group.members) as process,
    ):
        with timed("front end's entry point, until /health"):
            until_up(f"http://127.0.0.1:{port}/health", process, log, 60)
        assert f"http://127.0.0.1:{port}/\n" in log.read_text()
        assert "<title>Descant" in httpx.get(f"http://127.0.0.1:{port}/").text
        assert container.healthy(service["healthcheck"]["test"])
        note(
            f"front end: {group.resident() / 2**20:.0f} MiB of its own, peak with files {group.peak() / 2**20:.0f} MiB"
        )
    assert not container.healthy(service["healthcheck"]["test"])
    assert environment["DESCANT_API_KEY"] not in log.read_text()
