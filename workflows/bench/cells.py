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
from descant.workflows.bench.files import writing
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
        """Raises ValueError, with the reason, if it is none."""
        shaped(line, KEY, "the cell")
        key = Key(line["scheme"], line["agents"], line["rate"], line["repeat"])
        if "error" in line:
            shaped(line, {"error": WORDS}, "the cell")
            return cls(key, error=line["error"])
        shaped(line, MEASURED, "the cell")
        if not line["rows"]:
            raise ValueError("the cell has no rows")
        for name in ("evicted", "retracted", "rss"):
            if line["watched"].get(name) is not None:
                shaped(line["watched"], {name: NUMBER}, "what was watched")
        samples = [Sample(**sample) for sample in line["watched"]["samples"]]
        watched = Watched(**{**line["watched"], "samples": samples})
        return cls(key, [_row(row, key.agents) for row in line["rows"]], watched)


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
    started: list[Mapping[str, Any]] = []
    cells: dict[Key, Cell] = {}
    for number, text in enumerate(data[: _whole(data)].split(b"\n"), start=1):
        if not text.strip():
            continue
        kind = None
        try:
            line = json.loads(text)
            kind = line["line"]
            match kind:
                case "recipe" if recipe is None:
                    shaped(line, {"recipe": RECIPE_HAS}, "the line")
                    if started or cells:
                        raise ValueError("its recipe is not the first line")
                    recipe = line["recipe"]
                case "recipe":
                    raise ValueError("it is a second recipe")
                case "started":
                    shaped(line, STARTED_HAS, "the line")
                    started.append(line)
                case "cell":
                    cell = Cell.from_json(line)
                    if recipe is not None and cell.key.scheme not in recipe["schemes"]:
                        raise ValueError(f"the recipe has no scheme {_short(cell.key.scheme)}")
                    cells[cell.key] = cell
                case _:
                    raise ValueError(f"it is {_short(kind)}")
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            if recipe is None and kind != RECIPE:
                break
            why = str(error) if type(error) is ValueError else "it cannot be read"
            raise DescantError(
                f"{path}, line {number} is not of a benchmark: {why}; {_way_out(kind, text)}."
            ) from error
    if recipe is None:
        raise DescantError(f"{path} is no benchmark: descant bench agents --output FILE writes one.")
    return Bench(recipe, started, cells)


def measured(path: Path) -> Bench:
    """As `read`, and of a cell at least there is a measurement.

    Raises:
        DescantError: it cannot be read, holds something else, or no measurement.
    """
    bench = read(path)
    if not any(cell.error is None for cell in bench.cells.values()):
        raise DescantError(f"{path} has no measured cell yet: run descant bench agents again, to the end of one.")
    return bench


def _way_out(kind: object, text: bytes) -> str:
    """What to do about a bad line, and what that costs."""
    if kind == RECIPE:
        return "without it nothing in the file counts, so measure anew, into another file"
    if kind == CELL or (kind is None and b'"cell"' in text):
        if b'"error"' in text:
            return "delete the line, with which no measurement goes"
        return "delete the line, and the cell that it had measured is run again"
    return "delete the line, with which no measurement goes"


def _whole(data: bytes) -> int:
    """Bytes of `data` without a last line that was cut off; one that lacks its newline alone is whole."""
    end = data.rfind(b"\n") + 1
    try:
        json.loads(data[end:])
    except (ValueError, RecursionError):
        return end
    return len(data)


# What lines must have, by name. A type stands for its values, a list for any number of its one; numbers are finite.
WORDS, COUNT, NUMBER, POSITIVE = "words", "a number of things", "a number", "a number above 0"
RECIPE_HAS: Mapping[str, Any] = {
    "schemes": [WORDS],
    "trace": {"turns": list},
    "choice": WORDS,
    "scale": POSITIVE,
    "workflows": COUNT,
    "seed": NUMBER,
    "trajectory": POSITIVE,
    "pool_tokens": POSITIVE,
    "max_running": POSITIVE,
    "model": WORDS,
    "adapters": WORDS,
    "versions": dict,
    "machine": {"cpu": str, "cores": COUNT, "memory_gib": COUNT, "gpus": [str]},
}
STARTED_HAS: Mapping[str, Any] = {"command": [str]}
KEY: Mapping[str, Any] = {"scheme": WORDS, "agents": COUNT, "rate": POSITIVE, "repeat": COUNT}
MEASURED: Mapping[str, Any] = {
    "rows": [list],
    "watched": {"samples": [{"at": NUMBER, "running": COUNT, "cached": COUNT}]},
}


def shaped(value: Any, shape: Any, name: str) -> None:
    """Raise ValueError, with the reason, unless `value`, which is called `name`, has that shape."""
    if isinstance(shape, Mapping):
        if not isinstance(value, dict):
            raise ValueError(f"{name} is no object")
        for key, inner in shape.items():
            if key not in value:
                raise ValueError(f"{name} has no {key}")
            shaped(value[key], inner, f"its {key}")
    elif isinstance(shape, list):
        if not isinstance(value, list):
            raise ValueError(f"{name} is no list")
        for one in value:
            shaped(one, shape[0], f"one of {name}")
    elif isinstance(shape, type):
        if not isinstance(value, shape):
            raise ValueError(f"{name} is {_short(value)}")
    elif shape == WORDS:
        if not isinstance(value, str) or not value.strip():
            raise ValueError(f"{name} is {_short(value)}")
    else:
        if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 2**60:
            raise ValueError(f"{name} is {_short(value)}")
        if (shape == COUNT and (value < 0 or value != int(value))) or (shape == POSITIVE and value <= 0):
            raise ValueError(f"{name} is {_short(value)}")


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 40 else f"{text[:40]}…"


def _row(values: Sequence[Any], agents: int) -> Row:
    """A row of a file: counts and times that can be."""
    row = Row(*values) if len(values) in (11, 12) else None
    numbers = [value for value in values if value is not None]
    for value in numbers:
        shaped(value, NUMBER, "a figure of a row")
    if (
        row is None
        or len(numbers) < 11
        or None in values[:11]
        or not all(isinstance(value, int) for value in (row.workflow, row.turn, row.agent, *values[7:11]))
        or not (0 <= row.agent < agents and 0 <= row.cross_agent <= row.cached < row.prompt and row.output >= 1)
        or not row.due <= row.sent <= row.first
        or not row.due < min(row.first, row.end)
    ):
        raise ValueError("a row is no turn that was served")
    return row


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
        with writing(path):
            there = path.exists() and path.stat().st_size > 0
        before = read(path) if there else None
        if before is not None and (differing := [name for name in recipe if before.recipe.get(name) != recipe[name]]):
            if before.cells:
                raise DescantError(
                    f"{path} is of another benchmark (it differs in {', '.join(differing)}): choose another --output, "
                    "or delete that file."
                )
            before = None  # begun, and nothing came of it
        if before is None:
            with writing(path):
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(b"")
            self._write({"line": RECIPE, "recipe": recipe})
        else:
            self.cells = {key: cell for key, cell in before.cells.items() if cell.error is None}
            self._cut()
        self._write({"line": STARTED, **started})

    def add(self, cell: Cell) -> None:
        """Keep a cell."""
        self.cells[cell.key] = cell
        self._write(cell.as_json())

    def _cut(self) -> None:
        """Remove a last line that is not whole, and end one that lacks its newline alone."""
        with writing(self.path):
            data = self.path.read_bytes()
            with self.path.open("r+b") as file:
                file.truncate(_whole(data))
                file.seek(0, 2)
                if not data[: _whole(data)].endswith(b"\n"):
                    file.write(b"\n")

    def _write(self, line: Mapping[str, Any]) -> None:
        with writing(self.path), self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
