"""The cache folder: things that are made once, and are either whole or not there."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from descant.runtime.errors import DescantError

MANIFEST = "descant-manifest.json"
STALE_S = 3600


def cache_dir() -> Path:
    """$DESCANT_CACHE, else $XDG_CACHE_HOME/descant, else ~/.cache/descant.

    descant.kernels.cpu.compiled, which imports nothing of ours, does the same for the operators that it compiles.
    """
    if own := os.environ.get("DESCANT_CACHE"):
        return Path(own).expanduser()
    xdg = os.environ.get("XDG_CACHE_HOME")
    return (Path(xdg) if xdg else Path.home() / ".cache") / "descant"


def is_whole(folder: Path) -> bool:
    """Whether `folder` holds every file that was there when it was published, each of the same size in bytes."""
    try:
        sizes = json.loads((folder / MANIFEST).read_text())
        return all((folder / name).stat().st_size == size for name, size in sizes.items())
    except (OSError, ValueError):
        return False


@contextmanager
def published(folder: Path) -> Iterator[Path]:
    """A scratch folder that becomes `folder` in one rename if the block ends well, and is removed if it does not.

    Readers therefore never see a half-written folder, and of two processes that make the same one, either result stays.

    Raises:
        DescantError: the cache folder cannot be written.
    """
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        for stale in folder.parent.glob(f".{folder.name}-*"):  # left by a process that was killed
            if time.time() - stale.stat().st_mtime > STALE_S:
                shutil.rmtree(stale, ignore_errors=True)
        scratch = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    except OSError as error:
        raise DescantError(
            f"The cache folder {folder.parent} cannot be written ({error.strerror}): set DESCANT_CACHE to one that can."
        ) from error
    try:
        yield scratch
        sizes = {str(file.relative_to(scratch)): file.stat().st_size for file in scratch.rglob("*") if file.is_file()}
        (scratch / MANIFEST).write_text(json.dumps(sizes, indent=1))
        scratch.chmod(0o755)  # mkdtemp's 0700 would keep a shared cache from its other readers
        if folder.exists() and not is_whole(folder):
            shutil.rmtree(folder)
        try:
            scratch.rename(folder)
        except OSError:
            if not is_whole(folder):
                raise
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
