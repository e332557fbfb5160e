"""The compose files as Docker Compose itself reads them, in an environment that has nothing set."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from typing import Any

from paths import DOCKER, compose

MAIN = "compose.yaml"


def read(*overrides: str, variables: Mapping[str, str] = {}) -> subprocess.CompletedProcess[str]:
    """Compose checks the files against the Compose Specification's schema, fills them in and merges them."""
    files = [word for name in (MAIN, *overrides) for word in ("--file", str(DOCKER / name))]
    return subprocess.run(
        [compose(), "--env-file", "/dev/null", *files, "--profile", "monitoring", "config", "--format", "json"],
        capture_output=True,
        text=True,
        env={"PATH": "/usr/bin:/bin", "HOME": "/nonexistent", **variables},
    )


def services(*overrides: str, variables: Mapping[str, str] = {}) -> dict[str, Any]:
    done = read(*overrides, variables=variables)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)["services"]
    return found
