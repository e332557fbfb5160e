"""The compose files: valid, on loopback only, limited in memory, started in the order of health, with a key."""

from __future__ import annotations

import re
from pathlib import Path

import compose
import pytest
from paths import DOCKER, ROOT

KEY = {"DESCANT_API_KEY": "a-key-of-mine"}
SETS = [(), ("gpu.yaml",), ("server-port.yaml",), ("gpu.yaml", "server-port.yaml")]


@pytest.fixture(params=SETS, ids=lambda names: "+".join(names) or "alone")
def services(request: pytest.FixtureRequest) -> dict:
    return compose.services(*request.param, variables=KEY)


def test_valid_with_nothing_set() -> None:
    assert set(compose.services()) == {"server", "ui", "prometheus", "grafana"}


def test_a_word_the_schema_lacks_is_refused(tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text("services: {ui: {port: [8080]}}\n")
    done = compose.read(str(wrong))
    assert done.returncode != 0
    assert "port" in done.stderr


def test_ports_are_on_loopback(services: dict) -> None:
    ports = [port for service in services.values() for port in service.get("ports", ())]
    assert ports
    assert {port["host_ip"] for port in ports} == {"127.0.0.1"}


def test_memory_is_limited(services: dict) -> None:
    assert all(int(service["deploy"]["resources"]["limits"]["memory"]) > 0 for service in services.values())


def test_each_waits_for_the_health_of_what_it_needs(services: dict) -> None:
    needs = {name: set(service.get("depends_on", ())) for name, service in services.items()}
    assert needs == {"server": set(), "ui": {"server"}, "prometheus": {"server"}, "grafana": {"prometheus"}}
    for service in services.values():
        assert all(need["condition"] == "service_healthy" for need in service.get("depends_on", {}).values())
    for needed in set().union(*needs.values()):
        image = services[needed].get("build")
        assert "healthcheck" in services[needed] or "\nHEALTHCHECK " in (ROOT / image["dockerfile"]).read_text()


def test_privileges_are_dropped(services: dict) -> None:
    for service in services.values():
        assert service["cap_drop"] == ["ALL"]
        assert service["security_opt"] == ["no-new-privileges:true"]
        assert not service.get("privileged")


def test_only_monitoring_has_a_profile(services: dict) -> None:
    for name, service in services.items():
        assert service.get("profiles") == (["monitoring"] if name in ("prometheus", "grafana") else None)


def test_what_is_mounted_is_there(services: dict) -> None:
    mounts = [mount for service in services.values() for mount in service["volumes"] if mount["type"] == "bind"]
    assert len(mounts) == 3
    assert all(Path(mount["source"]).exists() and mount["read_only"] for mount in mounts)


def test_one_key_for_the_server_and_the_page(services: dict) -> None:
    assert {services[name]["environment"]["DESCANT_API_KEY"] for name in ("server", "ui")} == {KEY["DESCANT_API_KEY"]}


def test_a_default_key_only_where_the_server_is_not_published() -> None:
    assert "ports" not in compose.services()["server"]
    done = compose.read("server-port.yaml")
    assert done.returncode != 0
    assert "DESCANT_API_KEY" in done.stderr
    assert compose.services("server-port.yaml", variables=KEY)["server"]["ports"][0]["published"] == "30000"


def test_gpu_is_reserved_and_its_base_picked() -> None:
    server = compose.services("gpu.yaml")["server"]
    (device,) = server["deploy"]["resources"]["reservations"]["devices"]
    assert device["capabilities"] == ["gpu"]
    assert re.fullmatch(r"nvidia/cuda:13\.\d+\.\d+-devel-ubuntu24\.04", server["build"]["args"]["BASE"])
    assert server["image"] != compose.services()["server"]["image"]


def test_the_page_is_where_it_says() -> None:
    page = compose.services(variables={"DESCANT_UI_PORT": "8123"})["ui"]
    (port,) = page["ports"]
    assert (port["target"], port["published"]) == (8123, "8123")
    assert page["command"][-2:] == ["--port", "8123"]
    assert ":8123/health" in page["healthcheck"]["test"][-1]


def test_a_model_of_ones_own() -> None:
    served = compose.services(variables={"DESCANT_SERVE": "--model-path BASE --lora-paths plan=DIR"})["server"]
    assert served["command"][:5] == ["serve", "--model-path", "BASE", "--lora-paths", "plan=DIR"]


def test_variables_are_all_told() -> None:
    used = {name for file in DOCKER.glob("*.yaml") for name in re.findall(r"\$\{(\w+)", file.read_text())}
    assert used == set(re.findall(r"^#?(\w+)=", (DOCKER / ".env.example").read_text(), re.MULTILINE))
    assert used == set(re.findall(r"^\| `([A-Z_]+)` \|", (ROOT / "docs/docker.md").read_text(), re.MULTILINE))
