"""Files that a command writes: what is there stays, and a place that cannot be written is known before the work."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from descant.runtime.errors import DescantError


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """What goes wrong with the system's files within the block is said of `path`."""
    try:
        yield
    except OSError as error:
        # To make a folder where a file is says only that something exists.
        reason = "Not a directory" if isinstance(error, FileExistsError) else error.strerror
        raise DescantError(f"{path} cannot be written ({reason}): name another place.") from error


def new(path: Path) -> None:
    """Raise DescantError if something is at `path`, or nothing can be written there; leave nothing behind."""
    with writing(path):
        if path.is_dir():
            raise DescantError(f"{path} is a folder: name a file in it.")
        if path.exists() or path.is_symlink():
            raise DescantError(f"{path} is there already, and is not overwritten: name another file.")
        _try(path)


def writable(folder: Path) -> None:
    """Raise DescantError if no file can be written into `folder`, which need not be there; leave nothing behind."""
    with writing(folder):
        if folder.exists() and not folder.is_dir():
            raise DescantError(f"{folder} cannot be written (Not a directory): name another place.")
        _try(folder / ".descant-is-it-writable")


def _try(file: Path) -> None:
    absent = [folder for folder in file.parents if not folder.exists()]
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.open("x").close()
        file.unlink()
    finally:
        for folder in absent:  # the innermost first
            if folder.exists():
                folder.rmdir()


def write_new(path: Path, text: str) -> None:
    """Write a file that is not there, and the folders above it.

    Raises:
        DescantError: it is there, or cannot be written.
    """
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            file = path.open("x", encoding="utf-8")
        except FileExistsError as error:
            raise DescantError(f"{path} is there already, and is not overwritten: name another file.") from error
        with file:
            file.write(text)
