"""Wikipedia, through its public HTTP API, as the pages of `Search` and `Lookup`.

Nothing here is used unless a program asks for it: it is the one tool that leaves the machine.
"""

from __future__ import annotations

import re
from typing import Any

import httpx
from langchain_core.tools import BaseTool

from descant._version import __version__
from descant.agents.tools.pages import SIMILAR_TITLES, Page, Reader
from descant.agents.tools.text import fold
from descant.runtime.errors import DescantError

_HEADING = re.compile(r"^=+ .* =+$", re.MULTILINE)


class WikipediaError(DescantError):
    """Wikipedia cannot be reached, or does not answer as its API does."""


class Wikipedia:
    """The articles of one language's Wikipedia; safe to use from several threads.

    Args:
        language: the code in the site's name, "en" or "pt".
        base_url: another MediaWiki with the extension TextExtracts, in place of that site.
        user_agent: who asks; Wikimedia wants a way to reach you in it, and may refuse requests without one.
        timeout: seconds that each request may wait for the network.
    """

    def __init__(
        self,
        *,
        language: str = "en",
        base_url: str | None = None,
        user_agent: str = f"descant/{__version__}",
        timeout: float = 10.0,
    ) -> None:
        self._http = httpx.Client(
            base_url=base_url or f"https://{language}.wikipedia.org",
            headers={"User-Agent": user_agent},
            timeout=timeout,
            follow_redirects=True,
        )

    def tools(self) -> list[BaseTool]:
        """`Search` and `Lookup` for one run: they remember its page, so no two runs may share them."""
        return Reader(self).tools()

    def find(self, entity: str) -> Page | list[str]:
        """The article with this title, redirects followed, in any case; otherwise the titles a search finds.

        Raises:
            WikipediaError: no answer, or not one of the API's.
        """
        if page := self._page(entity):
            return page
        titles = self._search(entity)
        same = [title for title in titles if fold(title) == fold(entity)]
        return (self._page(same[0]) if same else None) or titles

    def _page(self, title: str) -> Page | None:
        if "|" in title:  # it separates titles, and none contains it
            return None
        query = self._query(prop="extracts", explaintext="1", redirects="1", titles=title)
        (page,) = query.get("pages") or [{}]
        if "extract" not in page:  # missing, or no title at all
            return None
        return Page(page["title"], _HEADING.sub("", page["extract"]).strip())

    def _search(self, entity: str) -> list[str]:
        query = self._query(list="search", srsearch=entity, srlimit=str(SIMILAR_TITLES), srprop="")
        return [found["title"] for found in query.get("search", ())]

    def _query(self, **parameters: str) -> dict[str, Any]:
        fixed = {"action": "query", "format": "json", "formatversion": "2"}
        site = self._http.base_url.host
        try:
            answer = self._http.get("/w/api.php", params=fixed | parameters).raise_for_status().json()
            if not isinstance(answer, dict):
                raise ValueError
        except httpx.HTTPStatusError as error:
            raise WikipediaError(f"{site} answers HTTP {error.response.status_code}.") from error
        except httpx.HTTPError as error:
            raise WikipediaError(f"{site} cannot be reached ({str(error) or type(error).__name__}).") from error
        except ValueError as error:
            raise WikipediaError(f"{site} does not answer as MediaWiki's API does.") from error
        if "error" in answer:
            raise WikipediaError(f"{site} answers: {answer['error'].get('info', answer['error'])}")
        query: dict[str, Any] = answer.get("query", {})
        return query
