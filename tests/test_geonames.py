"""The look-up tool: real facts, forgiving of spelling."""

import pytest

from descant.agents.tools.geonames import Geonames


@pytest.fixture(scope="module")
def lookup() -> Geonames:
    return Geonames()


@pytest.mark.parametrize("spelling", ["Portugal", " portugal ", "PORTUGAL", "Pórtugal"])
def test_a_country_in_any_spelling(lookup: Geonames, spelling: str) -> None:
    fact = lookup(spelling)
    assert fact.entity == "Portugal"
    assert "capital is Lisbon" in fact.text
    assert "currency is the Euro" in fact.text
    assert fact.related == ("Lisbon", "Spain")


def test_an_article_before_a_country(lookup: Geonames) -> None:
    assert "Amsterdam" in lookup("the Netherlands").text


def test_an_island_has_no_neighbours(lookup: Geonames) -> None:
    assert "no neighbours by land" in lookup("Japan").text


def test_a_city_names_its_country(lookup: Geonames) -> None:
    fact = lookup("madrid")
    assert fact.text.startswith("Madrid is a city in Spain; its population is ")
    assert fact.related == ("Spain",)


def test_of_two_cities_the_larger_answers(lookup: Geonames) -> None:
    assert "in United Kingdom" in lookup("London").text


def test_a_misspelt_name_brings_similar_ones(lookup: Geonames) -> None:
    fact = lookup("Portugul")
    assert "Nothing is known about Portugul" in fact.text
    assert "Portugal" in fact.related


@pytest.mark.parametrize("nonsense", ["", "zzzzqqqq", "][", "💡"])
def test_nonsense_is_answered_too(lookup: Geonames, nonsense: str) -> None:
    assert lookup(nonsense).text.startswith("Nothing is known about")


def test_every_country_has_a_fact(lookup: Geonames) -> None:
    for country in list(lookup.countries.values()):
        assert lookup(country["name"]).entity == country["name"]


def test_countries_in_a_question(lookup: Geonames) -> None:
    assert lookup.known_in("Does guinea-bissau border Senegal, or Niger?") == ["Guinea-Bissau", "Senegal", "Niger"]
    assert lookup.known_in("What is Nigerian food?") == []


def test_the_first_language_has_a_name(lookup: Geonames) -> None:
    assert "its first language is Spanish;" in lookup("Peru").text
    unnamed = [
        c["name"]
        for c in lookup.countries.values()
        if c["languages"] and "first language" not in lookup._country(c).text
    ]
    assert unnamed == ["Serbia and Montenegro"]  # which is no more
