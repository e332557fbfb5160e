"""Prometheus' configuration and Grafana's provisioning and dashboard, as far as they can be checked without Grafana."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import compose
import monitoring
import yaml
from paths import DOCKER, tool


def test_promtool_accepts_the_configuration() -> None:
    done = subprocess.run(
        [tool("promtool"), "check", "config", str(DOCKER / "prometheus.yml")],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


def test_promtool_parses_every_expression(tmp_path: Path) -> None:
    rules = [{"record": f"panel:{number}", "expr": expr} for number, expr in enumerate(monitoring.expressions())]
    file = tmp_path / "rules.yml"
    file.write_text(json.dumps({"groups": [{"name": "dashboard", "rules": rules}]}))
    done = subprocess.run([tool("promtool"), "check", "rules", str(file)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(rules) >= 10


def test_targets_are_services_of_the_compose_file() -> None:
    services = compose.services()
    config = yaml.safe_load((DOCKER / "prometheus.yml").read_text())
    (target,) = config["scrape_configs"][0]["static_configs"][0]["targets"]
    host, port = target.split(":")
    assert host in services
    assert services[host]["command"][-2:] == ["--port", port]
    (source,) = yaml.safe_load((DOCKER / "grafana/provisioning/datasources/prometheus.yaml").read_text())["datasources"]
    assert source["url"] == "http://prometheus:9090"


def test_dashboard_is_found_and_reads_the_provisioned_source() -> None:
    (provider,) = yaml.safe_load((DOCKER / "grafana/provisioning/dashboards/descant.yaml").read_text())["providers"]
    grafana = compose.services()["grafana"]
    mounted = {mount["target"]: mount["source"] for mount in grafana["volumes"]}
    assert Path(mounted[provider["options"]["path"]]) == monitoring.DASHBOARD.parent
    home = grafana["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
    assert home == f"{provider['options']['path']}/{monitoring.DASHBOARD.name}"
    (source,) = yaml.safe_load((DOCKER / "grafana/provisioning/datasources/prometheus.yaml").read_text())["datasources"]
    for panel in monitoring.panels():
        assert {target["datasource"]["uid"] for target in panel["targets"]} == {source["uid"]}


def test_panels_lie_side_by_side() -> None:
    panels = monitoring.panels()
    assert len({panel["id"] for panel in panels}) == len(panels)
    cells = [
        (x, y)
        for panel in panels
        for x in range(panel["gridPos"]["x"], panel["gridPos"]["x"] + panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["y"], panel["gridPos"]["y"] + panel["gridPos"]["h"])
    ]
    assert len(set(cells)) == len(cells)
    assert max(x for x, _ in cells) == 23
