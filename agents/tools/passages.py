"""A collection of passages, one JSON object a line with `title` and `text`, as the pages of `Search` and `Lookup`."""

from __future__ import annotations

import hashlib
import json
import re
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from langchain_core.tools import BaseTool

from descant.agents.tools.pages import SIMILAR_TITLES, Page, Reader
from descant.agents.tools.text import fold
from descant.runtime.cache import cache_dir, is_whole, published
from descant.runtime.errors import DescantError

FOLDER = "passages-1"  # the number changes with the schema
INDEX = "index.sqlite"
QUERY_WORDS = 32
# Words that most passages have: they tell nothing, and ranking all their matches takes seconds in a large collection.
_COMMON = frozenset(
    ("a", "an", "and", "are", "as", "at", "by", "for", "from", "in", "is", "it", "of", "on", "or", "the", "to", "was")
)

# words finds by what a title or a text says, letters by how a title is spelt.
_SCHEMA = """
CREATE TABLE passage (line INTEGER PRIMARY KEY, title TEXT NOT NULL UNIQUE, key TEXT NOT NULL, text TEXT NOT NULL);
CREATE INDEX passage_key ON passage (key);
CREATE VIRTUAL TABLE words USING fts5 (title, text, content=passage, content_rowid=line,
    tokenize="porter unicode61 remove_diacritics 2");
CREATE VIRTUAL TABLE letters USING fts5 (key, content=passage, content_rowid=line, tokenize=trigram);
"""
_BY_WORDS = """
SELECT passage.title FROM words JOIN passage ON line = words.rowid WHERE words MATCH ?
ORDER BY bm25(words, 10, 1) LIMIT ?"""
_BY_LETTERS = """
SELECT passage.title FROM letters JOIN passage ON line = letters.rowid WHERE letters MATCH ? ORDER BY rank LIMIT ?"""


class Passages:
    """The passages of a JSONL file, indexed in SQLite (FTS5); safe to use from several threads.

    The index is a file in the cache folder, keyed by the content: a collection of millions is indexed once, takes no
    memory, and is shared by all processes.

    Raises:
        DescantError: on construction, if the file is unreadable or malformed; names the line.
    """

    def __init__(self, path: Path | str) -> None:
        path = Path(path)
        folder = cache_dir() / FOLDER / _digest(path)
        if not is_whole(folder):
            with published(folder) as scratch:
                _build(path, scratch / INDEX)
        self._lock = threading.Lock()
        address = f"{(folder / INDEX).absolute().as_uri()}?mode=ro&immutable=1"
        self._index = sqlite3.connect(address, uri=True, check_same_thread=False)

    def tools(self) -> list[BaseTool]:
        """`Search` and `Lookup` for one run: they remember its page, so no two runs may share them."""
        return Reader(self).tools()

    def find(self, entity: str) -> Page | list[str]:
        """The passage with this title, exactly so or else folded; otherwise the titles of passages like it."""
        by = "SELECT title, text FROM passage WHERE {} = ? ORDER BY line LIMIT 1"
        found = self._rows(by.format("title"), entity) or self._rows(by.format("key"), fold(entity))
        return Page(*found[0]) if found else self._similar(entity)

    def _similar(self, entity: str) -> list[str]:
        every = re.findall(r"\w+", fold(entity))[:QUERY_WORDS]
        words = [word for word in every if word not in _COMMON] or every
        spelt = " ".join(words)
        letters = dict.fromkeys(spelt[i : i + 3] for i in range(min(len(spelt), 4 * QUERY_WORDS) - 2))
        titles: dict[str, None] = {}
        for query, terms in ((_BY_WORDS, words), (_BY_LETTERS, letters)):
            if terms and len(titles) < SIMILAR_TITLES:
                rows = self._rows(query, " OR ".join(f'"{term}"' for term in terms), SIMILAR_TITLES)
                titles.update((title, None) for (title,) in rows)
        return list(titles)[:SIMILAR_TITLES]

    def _rows(self, query: str, *values: object) -> list[tuple[str, ...]]:
        with self._lock:
            return self._index.execute(query, values).fetchall()


def _digest(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()[:32]
    except OSError as error:
        raise DescantError(f"The passages {path} cannot be read: {error.strerror}.") from error


def _build(path: Path, index: Path) -> None:
    with closing(sqlite3.connect(index)) as database, database:
        database.executescript(_SCHEMA)
        line = 0
        for line, page in _read(path):
            try:
                row = (line, page.title, fold(page.title), page.text)
                database.execute("INSERT INTO passage VALUES (?, ?, ?, ?)", row)
            except sqlite3.IntegrityError as error:
                ((first,),) = database.execute("SELECT line FROM passage WHERE title = ?", (page.title,))
                raise DescantError(
                    f"{path}, line {line}: the title {page.title!r} is on line {first} already; each needs its own."
                ) from error
        if not line:
            raise DescantError(f"{path} has no passages: write one JSON object a line, with title and text.")
        for table in ("words", "letters"):
            database.execute(f"INSERT INTO {table} ({table}) VALUES ('rebuild')")


def _read(path: Path) -> Iterator[tuple[int, Page]]:
    """Each passage with the number of its line; blank lines are skipped."""
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            try:
                passage = json.loads(line.decode("utf-8-sig"))
                title, text = passage["title"], passage["text"]
                if not (isinstance(title, str) and isinstance(text, str) and title.strip()):
                    raise TypeError
                (title + text).encode()  # half of a surrogate pair, written \ud800, is JSON but no text
            except UnicodeError as error:
                raise DescantError(f"{path}, line {number} is not UTF-8: save the file as UTF-8.") from error
            except (ValueError, RecursionError) as error:
                reason = getattr(error, "msg", error)  # without json's own line number, which is always 1
                raise DescantError(f"{path}, line {number} is not JSON ({reason}): write one object a line.") from error
            except (KeyError, TypeError) as error:
                raise DescantError(
                    f"{path}, line {number} is no passage: it needs the strings title, not empty, and text."
                ) from error
            yield number, Page(title.strip(), text)
