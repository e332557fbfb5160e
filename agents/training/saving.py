"""Saving so that a full disk or a kill leaves what was saved before whole."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from descant.runtime.errors import DescantError

CHECKPOINT = re.compile(r"checkpoint-(\d+)")


def checkpoints(folder: Path) -> list[Path]:
    """The checkpoints in `folder`, all of them whole, the latest last."""
    found = [path for path in folder.glob("checkpoint-*") if CHECKPOINT.fullmatch(path.name)]
    return sorted(found, key=lambda path: int(path.name.partition("-")[2]))


@contextmanager
def whole(folder: Path) -> Iterator[Path]:
    """A scratch folder that is on the disk, every byte, before it becomes `folder` in one rename.

    Raises:
        DescantError: it cannot be written; there is no `folder` then, and what is beside it is as it was.
    """
    scratch = folder.with_name(f".{folder.name}")
    try:
        shutil.rmtree(scratch, ignore_errors=True)  # left by a process that was killed
        scratch.mkdir(parents=True)
        yield scratch
        for file in [path for path in scratch.rglob("*") if path.is_file()]:
            _sync(file)
        _sync(scratch)
        shutil.rmtree(folder, ignore_errors=True)
        scratch.rename(folder)
        _sync(folder.parent)
    except Exception as error:  # safetensors and torch have errors of their own for a full disk
        last = next(reversed(checkpoints(folder.parent)), None)
        kept = f"make room and go on with --resume from {last.name}" if last else "make room and begin again"
        raise DescantError(f"{folder} could not be saved ({_reason(error)}): {kept}.") from error
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def replace_files(scratch: Path, folder: Path, names: list[str]) -> None:
    """Move files from `scratch` to `folder`, on the same disk, in this order: renames need no room."""
    for name in names:
        os.replace(scratch / name, folder / name)
    _sync(folder)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or " ".join(str(error).split()) or type(error).__name__
