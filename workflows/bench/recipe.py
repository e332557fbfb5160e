"""What a benchmark measures: all that its figures depend on, but for the machine."""

from __future__ import annotations

import math
import os
import platform
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psutil

from descant._version import __version__
from descant.workflows.bench.schedule import Workflow
from descant.workflows.bench.traces import Trace, schedule, trajectory


@dataclass(frozen=True)
class Recipe:
    """The load, and the servers that it is offered to.

    schemes: in the order in which they are measured; in every second repeat from the last to the first.
    agents: numbers of agents, each of which is measured.
    workflows: in one cell. seed: of repeat 0; repeat r takes seed + r, under every scheme.
    rates: workflows a second; empty where saturation is looked for, from `start` on.
    fill: whether a rate on either side of each peak is measured, too.
    pool_workflows: how many whole trajectories the KV pool holds.
    max_running: requests that a server runs at once.
    """

    schemes: tuple[str, ...]
    agents: tuple[int, ...]
    trace: Trace
    choice: str
    scale: float
    workflows: int
    seed: int
    repeats: int
    rates: tuple[float, ...]
    start: float
    fill: bool
    pool_workflows: float
    max_running: int

    def schedule(self, agents: int, rate: float, repeat: int) -> list[Workflow]:
        """The load of a cell, the same for every scheme."""
        return schedule(
            self.trace,
            workflows=self.workflows,
            agents=agents,
            choice=self.choice,
            scale=self.scale,
            rate=rate,
            seed=self.seed + repeat,
        )

    @property
    def trajectory(self) -> int:
        """Tokens of one workflow at its end; all have as many."""
        return trajectory(self.trace, self.scale)

    @property
    def pool_tokens(self) -> int:
        """The rule: so many workflows' tokens, each token once, under every scheme and for any number of agents."""
        exact = self.pool_workflows * self.trajectory
        return math.ceil(exact - 1e-6)  # tokens / trajectory * trajectory may lie a rounding above the tokens

    def check(self) -> None:
        """Raise DescantError if there is no such load."""
        for agents in self.agents:
            self.schedule(agents, 1.0, 0)


def versions() -> dict[str, str]:
    """Of what the figures may depend on."""
    return {
        "descant": __version__,
        "python": platform.python_version(),
        **{name: version(name) for name in ("sglang", "torch", "transformers", "peft")},
    }


def machine() -> dict[str, Any]:
    """The machine that this process runs on."""
    import torch

    gpus = [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]
    return {
        "cpu": _cpu(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30),
        "gpus": gpus,
        "system": platform.system(),
    }


def _cpu() -> str:
    info = Path("/proc/cpuinfo")
    lines: Sequence[str] = info.read_text().splitlines() if info.is_file() else ()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
