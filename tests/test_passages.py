"""Search and Lookup over a collection of passages, and what a run remembers of them."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.tools import BaseTool

from descant.agents.tool import call, usage
from descant.agents.tool_state import restore, save
from descant.agents.tools.pages import Page
from descant.agents.tools.passages import Passages
from descant.agents.tools.text import fold, sentences
from descant.runtime.cache import cache_dir
from descant.runtime.errors import DescantError

PASSAGES = {
    "Arna": "Arna is a town on the Lule. It has 1,200 people. The mill is red. St. Olaf built it in 1.5 years. "
    "He left. The mill burned. Nobody rebuilt the mill.",
    "Old Mill (Arna)": "The Old Mill is a ruin.",
    "São Tomé": "São Tomé is an island.",
    "sao tome": "A ship of that name.",
    "Lule River": "A river in the north, crossing Arna.",
    "Blank": " ",
    "Quote \" and ' and *": "Odd.",
}


def write(path: Path, passages: Any) -> Path:
    lines = [json.dumps({"title": title, "text": text}, ensure_ascii=False) for title, text in passages.items()]
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("passages") / "passages.jsonl", PASSAGES)


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DESCANT_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module")
def passages(file: Path) -> Passages:
    return Passages(file)


@pytest.fixture
def tools(passages: Passages) -> list[BaseTool]:
    return passages.tools()


def say(tool: BaseTool, argument: str) -> str:
    seen = call(tool, argument)
    assert seen.ok, seen.text
    return seen.text


def test_search_reads_the_first_five_sentences(tools: list[BaseTool]) -> None:
    assert [usage(tool) for tool in tools] == ["Search[entity]", "Lookup[string]"]
    opening = (
        "Arna is a town on the Lule. It has 1,200 people. The mill is red. St. Olaf built it in 1.5 years. He left."
    )
    for spelling in ("Arna", " arna ", "ÁRNA"):
        assert say(tools[0], spelling) == opening


def test_the_exact_title_comes_before_one_that_folds_to_it(passages: Passages) -> None:
    def title(entity: str) -> str:
        found = passages.find(entity)
        assert isinstance(found, Page)
        return found.title

    assert title("sao tome") == "sao tome"
    assert title("São Tomé") == "São Tomé"
    assert title("SAO TOMÉ") == "São Tomé"


def test_a_title_that_is_not_there_brings_similar_ones(tools: list[BaseTool]) -> None:
    assert say(tools[0], "the rivers") == "Could not find the rivers. Similar: ['Lule River']"
    assert say(tools[0], "the town").startswith("Could not find the town. Similar: ['Arna'")
    assert say(tools[0], "of the").startswith("Could not find of the. Similar: [")
    assert "'Old Mill (Arna)'" in say(tools[0], "Old Mil of Arna")
    assert say(tools[0], "Lulle Rivre") == "Could not find Lulle Rivre. Similar: ['Lule River']"
    assert say(tools[0], "zzz") == "Could not find zzz."


def test_at_most_five_similar_titles(tmp_path: Path) -> None:
    many = Passages(write(tmp_path / "many.jsonl", {f"Mill {n}": "A mill." for n in range(9)}))
    similar = many.find("mill")
    assert isinstance(similar, list)
    assert len(set(similar)) == 5


def test_lookup_goes_from_result_to_result(tools: list[BaseTool]) -> None:
    search, lookup = tools
    assert not call(lookup, "mill").ok
    assert "Search comes first" in call(lookup, "mill").text
    say(search, "Arna")
    assert say(lookup, "mill") == "(Result 1 / 3) The mill is red."
    assert say(lookup, "MILL") == "(Result 2 / 3) The mill burned."
    say(search, "no such page")
    assert say(lookup, "mill") == "(Result 3 / 3) Nobody rebuilt the mill."
    assert say(lookup, "mill") == say(lookup, "mill") == "No more results for mill in Arna."
    assert say(lookup, "town") == "(Result 1 / 1) Arna is a town on the Lule."
    assert say(lookup, "mill") == "(Result 1 / 3) The mill is red."
    assert say(lookup, "castle") == "No results for castle in Arna."
    say(search, "Lule River")
    assert say(lookup, "mill") == "No results for mill in Lule River."
    assert say(lookup, "a river") == "(Result 1 / 1) A river in the north, crossing Arna."


@pytest.mark.parametrize("nothing", ["", "  ", "\u0301"])
def test_nothing_is_no_title_and_no_string(tools: list[BaseTool], nothing: str) -> None:
    search, lookup = tools
    assert call(search, nothing).text == "Search failed: it needs the title of a page."
    say(search, "Arna")
    assert call(lookup, nothing).text == "Lookup failed: it needs a string to look up."
    assert say(search, "Blank") == "The page Blank is empty."


def test_two_runs_do_not_share_a_page(passages: Passages) -> None:
    one, other = passages.tools(), passages.tools()
    say(one[0], "Arna")
    say(other[0], "Lule River")
    assert say(one[1], "town") == "(Result 1 / 1) Arna is a town on the Lule."
    assert say(other[1], "town") == "No results for town in Lule River."


def test_a_run_goes_on_in_another_process(file: Path, tools: list[BaseTool]) -> None:
    search, lookup = tools
    assert save(tools)["Search"] == {"title": None, "string": "", "seen": 0}
    say(search, "arna")
    say(lookup, "mill")
    program = """
import json, sys
from descant.agents.tool import call
from descant.agents.tool_state import restore, save
from descant.agents.tools.passages import Passages

tools = Passages(sys.argv[1]).tools()
restore(tools, json.loads(sys.argv[2]))
print(call(tools[1], "mill").text)
print(json.dumps(save(tools)))
"""
    words = [sys.executable, "-c", program, str(file), json.dumps(save(tools))]
    ended = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert not ended.stderr
    text, state = ended.stdout.splitlines()
    assert text == "(Result 2 / 3) The mill burned."
    restore(tools, json.loads(state))
    assert say(lookup, "mill") == "(Result 3 / 3) Nobody rebuilt the mill."


def test_a_page_that_is_gone_after_a_restore_is_said_so(tmp_path: Path, tools: list[BaseTool]) -> None:
    say(tools[0], "Lule River")
    other = Passages(write(tmp_path / "other.jsonl", {"Elsewhere": "Nothing."})).tools()
    restore(other, save(tools))
    assert call(other[1], "river").text == "Lookup failed: the page Lule River is no longer there."


def test_many_threads_read_at_once(passages: Passages) -> None:
    barrier = threading.Barrier(8)

    def run(number: int) -> list[str]:
        barrier.wait(20)
        search, lookup = passages.tools()
        return [call(search, ("Arna", "Lule River")[number % 2]).text, call(lookup, "a").text] * 20

    with ThreadPoolExecutor(8) as threads:
        seen = list(threads.map(run, range(8)))
    assert seen[0] == seen[2] == seen[4] == seen[6]
    assert seen[1] == seen[3] == seen[5] == seen[7]
    assert seen[0] != seen[1]


def test_an_index_is_made_once_for_a_content(tmp_path: Path) -> None:
    def indexes() -> set[tuple[Path, int]]:
        return {(path, path.stat().st_mtime_ns) for path in cache_dir().rglob("*.sqlite")}

    Passages(write(tmp_path / "a.jsonl", {"One": "First."}))
    before = indexes()
    Passages(write(tmp_path / "copy.jsonl", {"One": "First."}))
    assert indexes() == before
    changed = Passages(write(tmp_path / "a.jsonl", {"One": "Changed."}))
    assert len(indexes()) == len(before) + 1
    assert changed.find("one") == Page("One", "Changed.")


GOOD = b'{"title": "A", "text": "a"}\n'


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (GOOD + b"{", "line 2 is not JSON"),
        (GOOD + b"\n" + b"[" * 100_000, "line 3 is not JSON"),
        (GOOD + b'{"text": "b"}', "line 2 is no passage"),
        (GOOD + b'{"title": "B"}', "line 2 is no passage"),
        (GOOD + b'{"title": " ", "text": "b"}', "line 2 is no passage"),
        (GOOD + b'{"title": "B", "text": ["b"]}', "line 2 is no passage"),
        (GOOD + b'["B", "b"]', "line 2 is no passage"),
        (GOOD + b"3", "line 2 is no passage"),
        (GOOD + b'{"title": "B", "text": "caf\xe9"}', "line 2 is not UTF-8"),
        (GOOD + b'{"title": "B", "text": "\\ud800"}', "line 2 is not UTF-8"),
        (GOOD + b'{"title": "B", "text": "b"}\n' + GOOD, "line 3: the title 'A' is on line 1 already"),
        (b"", "has no passages"),
        (b"\n \n", "has no passages"),
        (None, "cannot be read: No such file or directory."),
    ],
)
def test_a_malformed_collection_is_one_sentence(tmp_path: Path, content: bytes | None, words: str) -> None:
    file = tmp_path / "passages.jsonl"
    if content is not None:
        file.write_bytes(content)
    before = set(cache_dir().rglob("*"))
    with pytest.raises(DescantError) as caught:
        Passages(file)
    assert words in str(caught.value)
    assert str(file) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert set(cache_dir().rglob("*")) - before <= {cache_dir() / "passages-1"}


def test_a_byte_order_mark_and_other_keys_do_no_harm(tmp_path: Path) -> None:
    file = tmp_path / "passages.jsonl"
    file.write_bytes(b'\xef\xbb\xbf{"title": "A", "text": "a", "url": "x"}\r\n')
    assert Passages(file).find("a") == Page("A", "a")


def test_a_folder_is_not_a_collection(tmp_path: Path) -> None:
    with pytest.raises(DescantError, match="cannot be read: Is a directory"):
        Passages(tmp_path)


@given(
    st.text(max_size=40)
    | st.sampled_from([*PASSAGES, '"', "*", "a OR b", "NEAR(", "title:x", "_", "-", "\x00", "x" * 5000])
)
def test_any_argument_is_answered(passages: Passages, text: str) -> None:
    search, lookup = passages.tools()
    for tool in (search, lookup):
        seen = call(tool, text)
        assert seen.ok or seen.text.startswith(f"{tool.name} failed: it needs") or "comes first" in seen.text


@pytest.mark.parametrize(
    "parts",
    [
        ["E. Gordon Gee was president.", "He left."],
        ["He moved to the U.S. Senate in 1990.", "It grew 1.5 times!", "Why?", '"Nobody knows."', "(So it is.)"],
        ["Dr. No vs. St. Olaf, i.e. two men, met at approx. 5 p.m. there.", "Then..."],
        ["One line", "another"],
        ["東京は首都です。", "大きい！"],  # noqa: RUF001
        ["Où?", "École fermée."],
        ["यह है।", "वह है।"],
    ],
)
def test_sentences_end_where_a_reader_ends_them(parts: list[str]) -> None:
    text = "".join(parts) if "。" in parts[0] else ("\n" if parts == ["One line", "another"] else " ").join(parts)
    assert sentences(text) == parts


@given(st.text(st.sampled_from('ab. A!?\n"。'), max_size=60))
def test_sentences_lose_nothing_but_white_space(text: str) -> None:
    assert "".join("".join(sentences(text)).split()) == "".join(text.split())
    assert all(sentence == sentence.strip() != "" for sentence in sentences(text))


def test_sentences_of_a_pathological_text_take_no_time() -> None:
    assert len(sentences("." * 200_000 + " " * 200_000 + "\n" * 200_000 + "a" * 200_000)) == 2


@given(st.text())
def test_folding_twice_changes_nothing(text: str) -> None:
    assert fold(fold(text)) == fold(text)
