"""HotpotQA: its files, its paragraphs as passages, and its measures against another way to compute them."""

from __future__ import annotations

import json
import string
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from descant.agents.tool import call
from descant.agents.tools.passages import Passages
from descant.runtime.errors import DescantError
from descant.workflows.hotpotqa import Question, exact_match, f1, normalise, read_questions, write_passages


def item(number: int, **changes: Any) -> dict[str, Any]:
    return {
        "id": f"q{number}",
        "question": "Which river crosses the town of the mill?",
        "answer": "the River Lule",
        "type": "bridge",
        "level": "easy",
        "context": [["Old Mill", ["The Old Mill is in Arna.", " It is red."]], [f"Arna {number}", ["Arna is small."]]],
        "supporting_facts": [["Old Mill", 0], [f"Arna {number}", 0]],
        **changes,
    }


def test_questions_and_their_paragraphs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DESCANT_CACHE", str(tmp_path / "cache"))
    file = tmp_path / "questions.jsonl"
    file.write_text("\n".join(json.dumps(item(number)) for number in (1, 2)) + "\n\n")
    questions = read_questions(file)
    assert [question.id for question in questions] == ["q1", "q2"]
    assert questions[0].context[0] == ("Old Mill", ("The Old Mill is in Arna.", " It is red."))
    assert questions[1].supporting == (("Old Mill", 0), ("Arna 2", 0))
    assert (questions[0].kind, questions[0].level) == ("bridge", "easy")

    write_passages(questions, tmp_path / "passages.jsonl")
    titles = [json.loads(line)["title"] for line in (tmp_path / "passages.jsonl").read_text().splitlines()]
    assert titles == ["Old Mill", "Arna 1", "Arna 2"]
    search, lookup = Passages(tmp_path / "passages.jsonl").tools()
    assert call(search, "old mill").text == "The Old Mill is in Arna. It is red."
    assert call(lookup, "red").text == "(Result 1 / 1) It is red."


def test_the_datasets_own_files_are_one_array(tmp_path: Path) -> None:
    own = item(1)
    own["_id"] = own.pop("id")
    file = tmp_path / "questions.json"
    file.write_text(json.dumps([own]))
    assert read_questions(file)[0].id == "q1"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (json.dumps(item(1)) + "\n{", "questions.jsonl, line 2 is no HotpotQA question"),
        (json.dumps({"id": "q"}), "questions.jsonl, line 1 is no HotpotQA question (KeyError: 'question')."),
        (json.dumps(item(1, context=[["Title"]])), "line 1 is no HotpotQA question"),
        (json.dumps([item(1), 3]), "questions.jsonl, entry 2 is no HotpotQA question"),
        ("[", "questions.jsonl is no HotpotQA question"),
        ("", "has no questions"),
        ("[]", "has no questions"),
        (b"\xff", "not UTF-8"),
        (None, "cannot be read"),
    ],
)
def test_a_malformed_file_is_one_sentence(tmp_path: Path, content: str | bytes | None, words: str) -> None:
    file = tmp_path / "questions.jsonl"
    if content is not None:
        file.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(DescantError) as caught:
        read_questions(file)
    assert words in str(caught.value)
    assert str(file) in str(caught.value)


def reference_tokens(answer: str) -> list[str]:
    """The dataset's definition, letter by letter: what is no letter of a word and no punctuation parts words."""
    kept = "".join(letter for letter in answer.lower() if letter not in string.punctuation)
    without: list[str] = []
    word = ""
    for letter in kept + " ":
        if letter.isalnum() or letter == "_":
            word += letter
            continue
        without.append(" " if word in ("a", "an", "the") else word)
        without.append(letter)
        word = ""
    return "".join(without).split()


def reference_f1(prediction: str, answer: str) -> float:
    """Precision and recall, from tokens crossed off one by one."""
    tokens, wanted = reference_tokens(prediction), reference_tokens(answer)
    if tokens != wanted and any(" ".join(side) in ("yes", "no", "noanswer") for side in (tokens, wanted)):
        return 0.0
    left = list(wanted)
    common = 0
    for token in tokens:
        if token in left:
            left.remove(token)
            common += 1
    if not common:
        return 0.0
    precision, recall = common / len(tokens), common / len(wanted)
    return 2 * precision * recall / (precision + recall)


@pytest.mark.parametrize(
    ("prediction", "answer", "exact", "score"),
    [
        ("The River Lule!", "river lule", True, 1.0),
        ("Lule", "the River Lule", False, 2 / 3),
        ("Yes.", "yes", True, 1.0),
        ("yes it is", "yes", False, 0.0),
        ("no", "noanswer", False, 0.0),
        ("yes", "yes men", False, 0.0),
        ("big big dog", "big dog", False, 0.8),
        ("", "Lule", False, 0.0),
        ("the", "a", True, 0.0),
        ("theatre", "the atre", False, 0.0),
        ("U.S.", "us", True, 1.0),
        ("1,000", "1000", True, 1.0),
    ],
)
def test_the_measures(prediction: str, answer: str, exact: bool, score: float) -> None:
    assert exact_match(prediction, answer) is exact
    assert f1(prediction, answer) == pytest.approx(score)


words = st.sampled_from(
    ["yes", "no", "noanswer", "the", "a", "An", "Lule", "river", "1,000", "U.S.", "-", "“the”", "_"]
)
answers = st.lists(words | st.text(st.characters(codec="utf-8"), max_size=3)).map(" ".join)


@given(answers)
def test_normalising_is_the_datasets(answer: str) -> None:
    assert normalise(answer).split() == reference_tokens(answer)


@given(answers, answers)
def test_f1_is_the_datasets(prediction: str, answer: str) -> None:
    assert f1(prediction, answer) == pytest.approx(reference_f1(prediction, answer))
    assert exact_match(prediction, answer) == (reference_tokens(prediction) == reference_tokens(answer))


@given(answers, answers)
def test_f1_is_a_share_and_takes_no_side(prediction: str, answer: str) -> None:
    assert 0 <= f1(prediction, answer) <= 1
    assert f1(prediction, answer) == f1(answer, prediction)
    assert f1(answer, answer) == (1 if normalise(answer) else 0)
    assert not exact_match(prediction, answer) or f1(prediction, answer) == f1(answer, answer)


ITEM = {
    "_id": "1",
    "question": "Q?",
    "answer": "A",
    "type": "bridge",
    "level": "easy",
    "context": [],
    "supporting_facts": [],
}


@pytest.mark.parametrize(
    "change",
    [
        {"answer": 5},
        {"answer": None},
        {"question": ""},
        {"question": 5},
        {"_id": ["x"]},
        {"context": [["Porto", [1, 2]]]},
        {"context": [["Porto", ["\ud800"]]]},
    ],
    ids=ascii,
)
def test_a_question_of_wrong_types_is_named(tmp_path: Path, change: dict[str, Any]) -> None:
    file = tmp_path / "questions.jsonl"
    file.write_text(json.dumps({**ITEM, **change}) + "\n")
    with pytest.raises(DescantError, match=r"line 1 is no HotpotQA question"):
        read_questions(file)


def test_deep_nesting_and_a_byte_order_mark(tmp_path: Path) -> None:
    file = tmp_path / "questions.jsonl"
    file.write_text("\ufeff" + json.dumps(ITEM), encoding="utf-8")
    assert len(read_questions(file)) == 1
    file.write_text("[" * 200_000)
    with pytest.raises(DescantError, match="no HotpotQA question"):
        read_questions(file)


def test_titles_are_written_once_and_no_passages_are_a_sentence(tmp_path: Path) -> None:
    question = Question("1", "Q?", "A", "bridge", "easy", (("Porto", ("a",)), ("Porto ", ("b",)), ("", ("c",))), ())
    write_passages([question], tmp_path / "passages.jsonl")
    assert (tmp_path / "passages.jsonl").read_text() == '{"title": "Porto", "text": "b"}\n'
    with pytest.raises(DescantError, match="nothing to search"):
        write_passages([replace(question, context=())], tmp_path / "passages.jsonl")
