"""`Search[entity]` and `Lookup[string]` over titled pages, as ReAct defines them (arXiv 2210.03629, section 3.1)."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Protocol

from langchain_core.tools import BaseTool

from descant.agents.tool_state import StatefulTool
from descant.agents.tools.text import fold, sentences
from descant.runtime.errors import DescantError

OPENING_SENTENCES = 5
SIMILAR_TITLES = 5


@dataclass(frozen=True)
class Page:
    title: str
    text: str


class Pages(Protocol):
    """Where pages come from."""

    def find(self, entity: str) -> Page | list[str]:
        """The page with this title, in any case and with or without accents; else up to `SIMILAR_TITLES` like it."""


@dataclass(frozen=True)
class Position:
    """Where a run is: its page's title, the string last looked up there, and how many results it has seen."""

    title: str | None = None
    string: str = ""
    seen: int = 0


class Reader:
    """One run's way through `pages`: what `Search` and `Lookup` share.

    Its state is three values, the `Position`; the page itself is found again by its title after `restore`.
    """

    def __init__(self, pages: Pages) -> None:
        self._pages = pages
        self._at = Position()
        self._page: Page | None = None

    def tools(self) -> list[BaseTool]:
        """The two tools, on this reader."""
        return [
            StatefulTool.from_function(self.search, name="Search", memory=self),
            StatefulTool.from_function(self.lookup, name="Lookup", memory=self),
        ]

    def search(self, entity: str) -> str:
        """Read the beginning of the page with this title, or the titles of similar pages if there is none."""
        if not fold(entity):
            raise DescantError("it needs the title of a page.")
        found = self._pages.find(entity.strip())
        if isinstance(found, Page):
            self._page, self._at = found, Position(found.title)
            return " ".join(sentences(found.text)[:OPENING_SENTENCES]) or f"The page {found.title} is empty."
        similar = f" Similar: {found}" if found else ""
        return f"Could not find {entity.strip()}.{similar}"

    def lookup(self, string: str) -> str:
        """Read the next sentence with this string in the page that Search found last."""
        key = fold(string)
        if not key:
            raise DescantError("it needs a string to look up.")
        page = self._current()
        results = [sentence for sentence in sentences(page.text) if key in fold(sentence)]
        seen = self._at.seen if self._at.string == key else 0
        if seen >= len(results):
            self._at = Position(page.title, key, seen)
            return f"No {'more ' if results else ''}results for {string.strip()} in {page.title}."
        self._at = Position(page.title, key, seen + 1)
        return f"(Result {seen + 1} / {len(results)}) {results[seen]}"

    def _current(self) -> Page:
        if self._at.title is None:
            raise DescantError("no page has been found yet; Search comes first.")
        if self._page is None:
            found = self._pages.find(self._at.title)
            if not isinstance(found, Page):
                raise DescantError(f"the page {self._at.title} is no longer there.")
            self._page = found
        return self._page

    def state(self) -> dict[str, Any]:
        return asdict(self._at)

    def restore(self, state: dict[str, Any]) -> None:
        self._at, self._page = Position(**state), None
