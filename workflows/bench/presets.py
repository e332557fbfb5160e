"""Benchmarks of a known length, and what is taken where neither the user nor a preset says otherwise."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

SCHEMES = ("nonshared", "icarus", "fullshared")  # what --kv-sharing takes

# Times are for two cores and the demo's model.
PRESETS: Mapping[str, Mapping[str, Any]] = {
    # One number of agents, two rates, once: under ten minutes.
    "small": {"agents": (2,), "rates": (0.125, 0.5), "repeats": 1, "workflows": 8},
    # The papers' numbers of agents, each scheme up to its saturation: under ninety minutes.
    "full": {"agents": (2, 4, 8), "rates": (), "repeats": 2, "workflows": 16},
}
DEFAULTS: Mapping[str, Any] = {
    "schemes": ("nonshared", "icarus"),
    "choice": "round-robin",
    "scale": 1 / 16,  # the traces are of a GPU's size
    "start": 0.125,
    "pool_workflows": 4.0,
    "max_running": 16,
}
