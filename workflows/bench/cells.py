"""A benchmark's file: what was measured, by what and where, one JSON object a line, so that finished cells stay.

The first line is the recipe; each start of the command adds its own line; the rest are cells.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, astuple, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from descant.runtime.errors import DescantError
from descant.workflows.bench.measures import measures
from descant.workflows.bench.row import Row
from descant.workflows.bench.watch import Sample, Watched

RECIPE, STARTED, CELL = "recipe", "started", "cell"


class Key(NamedTuple):
    """Which cell. rate: workflows a second."""

    scheme: str
    agents: int
    rate: float
    repeat: int


@dataclass(frozen=True)
class Cell:
    """One load on one server with an empty cache. error: why there is no measurement; then there are no rows."""

    key: Key
    rows: Sequence[Row] = ()
    watched: Watched = field(default_factory=Watched)
    error: str | None = None

    @cached_property
    def measures(self) -> dict[str, float | None]:
        return measures(self.rows, self.watched)

    def as_json(self) -> dict[str, Any]:
        head = {"line": CELL, **self.key._asdict()}
        if self.error is not None:
            return {**head, "error": self.error}
        return {**head, "measures": self.measures, "watched": asdict(self.watched), "rows": [*map(astuple, self.rows)]}

    @classmethod
    def from_json(cls, line: Mapping[str, Any]) -> Cell:
        key = Key(line["scheme"], line["agents"], line["rate"], line["repeat"])
        if "error" in line:
            return cls(key, error=line["error"])
        seen = dict(line["watched"])
        seen["samples"] = [Sample(**sample) for sample in seen["samples"]]
        return cls(key, [Row(*row) for row in line["rows"]], Watched(**seen))


@dataclass(frozen=True)
class Bench:
    """A file's contents. started: the commands. cells: the last of each key; one that failed may have been repeated."""

    recipe: Mapping[str, Any]
    started: Sequence[Mapping[str, Any]]
    cells: Mapping[Key, Cell]


def read(path: Path) -> Bench:
    """The benchmark in a file; a last line that was cut off is left out.

    Raises:
        DescantError: it cannot be read, or holds something else.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise DescantError(f"{path} cannot be read ({error.strerror}).") from error
    recipe: Mapping[str, Any] | None = None
    started, cells = [], {}
    for number, text in enumerate(data[: data.rfind(b"\n") + 1].splitlines(), start=1):
        try:
            line = json.loads(text)
            match line["line"]:
                case "recipe":
                    recipe = line["recipe"]
                case "started":
                    started.append(line)
                case "cell":
                    cell = Cell.from_json(line)
                    cells[cell.key] = cell
        except (ValueError, KeyError, TypeError) as error:
            if recipe is None:
                break
            raise DescantError(f"{path}, line {number} is not of a benchmark: delete the line.") from error
    if recipe is None:
        raise DescantError(f"{path} is no benchmark: descant bench agents --output FILE writes one.")
    return Bench(recipe, started, cells)


class Book:
    """The file that a benchmark writes.

    cells: what was measured; cells that failed are not among those read from the file, so that they are tried again.

    Raises:
        DescantError: the file cannot be written, or holds another recipe's cells.
    """

    def __init__(self, path: Path, recipe: Mapping[str, Any], started: Mapping[str, Any]) -> None:
        self.path = path
        self.cells: dict[Key, Cell] = {}
        recipe = json.loads(json.dumps(recipe))  # as it will be read
        if path.exists() and path.stat().st_size:
            before = read(path)
            if differing := [name for name in recipe if before.recipe.get(name) != recipe[name]]:
                raise DescantError(
                    f"{path} is of another benchmark (its {', '.join(differing)} differ): choose another --output, or "
                    "delete that file."
                )
            self.cells = {key: cell for key, cell in before.cells.items() if cell.error is None}
            self._cut()
        else:
            self._write({"line": RECIPE, "recipe": recipe})
        self._write({"line": STARTED, **started})

    def add(self, cell: Cell) -> None:
        """Keep a cell."""
        self.cells[cell.key] = cell
        self._write(cell.as_json())

    def _cut(self) -> None:
        """Remove a last line that is not whole."""
        whole = self.path.read_bytes().rfind(b"\n") + 1
        with self.path.open("r+b") as file:
            file.truncate(whole)

    def _write(self, line: Mapping[str, Any]) -> None:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
        except OSError as error:
            raise DescantError(f"{self.path} cannot be written ({error.strerror}).") from error
