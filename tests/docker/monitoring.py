"""The dashboard's expressions, and a Prometheus to try them on."""

from __future__ import annotations

import json
import re
from typing import Any

from paths import DOCKER

DASHBOARD = DOCKER / "grafana/dashboards/descant.json"
# What Grafana puts there: at least four scrapes.
INTERVAL = "20s"


def panels() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(DASHBOARD.read_text())["panels"]
    return found


def expressions() -> list[str]:
    return [target["expr"].replace("$__rate_interval", INTERVAL) for panel in panels() for target in panel["targets"]]


def metrics() -> set[str]:
    return {name for expression in expressions() for name in re.findall(r"\b(?:descant|sglang):\w+", expression)}
