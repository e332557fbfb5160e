"""A memory limit as a container has one: a control group of our own (version 1 or 2), which also knows the peak."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOTS = (Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup"))  # version 1, 2
LIMIT = ("memory.limit_in_bytes", "memory.max")
PEAK = ("memory.max_usage_in_bytes", "memory.peak")


class Group:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.members = folder / "cgroup.procs"

    def peak(self) -> int:
        """In bytes, of processes and of the files that they read."""
        return int(_one(self.folder, PEAK).read_text())

    def resident(self) -> int:
        """The processes' own memory now, in bytes, what they share counted once."""
        total = 0
        for process in self.members.read_text().split():
            lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
            total += sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))
        return total


@contextmanager
def limited(bytes_: int) -> Iterator[Group]:
    """A group that holds at most so much; its processes must have ended when the block does.

    Raises:
        RuntimeError: this machine lets nobody make one.
    """
    root = next((root for root in ROOTS if any((root / "cgroup.procs").parent.glob("memory.*"))), ROOTS[-1])
    folder = root / f"descant-{os.getpid()}"
    try:
        folder.mkdir()
        _one(folder, LIMIT).write_text(str(bytes_))
    except OSError as error:
        raise RuntimeError(
            f"No control group can be made in {root} ({error}): mount one with a memory controller."
        ) from error
    try:
        yield Group(folder)
    finally:
        folder.rmdir()


def _one(folder: Path, names: tuple[str, ...]) -> Path:
    for name in names:
        if (folder / name).exists():
            return folder / name
    raise FileNotFoundError(f"neither of {names} in {folder}")
