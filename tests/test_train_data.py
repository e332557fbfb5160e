"""What `descant train` reads: tokens as a session has them, the rows that count, and one sentence for what is wrong."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import tiny
from transformers import AutoTokenizer

from descant.agents.training.data import Samples, read_samples
from descant.runtime.errors import DescantError

TURNS = "{% for m in messages %}{{ m.role }}: {{ m.content }}<|eos|>\n{% endfor %}"
TEMPLATE = TURNS + "{% if add_generation_prompt %}assistant: {% endif %}"
Read = Callable[..., Samples]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("tokenizer")
    tiny.save_tokenizer(folder)
    found = AutoTokenizer.from_pretrained(folder)
    found.chat_template = TEMPLATE
    return found


@pytest.fixture
def read(tokenizer: Any, tmp_path: Path) -> Read:
    def read(*lines: Any, role: str | None = "plan", max_length: int = 1000) -> Samples:
        file = tmp_path / "data.jsonl"
        file.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))
        return read_samples(file, tokenizer, role, max_length)

    return read


def span(role: str | None, text: str) -> dict[str, Any]:
    return {"role": role, "text": text}


TRAJECTORY = {
    "opening": "Question: ",
    "spans": [
        span(None, "Thought:"),
        span("plan", " I kn"),
        span("plan", "ow\n"),
        span("act", "go"),
        span("plan", "!"),
    ],
}


def test_a_trajectory_is_tokenized_span_by_span(read: Read, tokenizer: Any) -> None:
    (sample,) = read(TRAJECTORY).samples
    pieces = [
        tokenizer.encode(text, add_special_tokens=False)
        for text in ("Question: ", "Thought:", " I kn", "ow\n", "go", "!")
    ]
    tokens = list(chain(*pieces))
    assert sample.ids == tokens[:-1]
    counted = pieces[2] + pieces[3] + pieces[5]
    assert sample.targets == counted == [tokens[row + 1] for row in sample.rows]
    before = len(pieces[0] + pieces[1])
    assert sample.rows[0] == before - 1
    assert tokenizer.decode(sample.targets) == " I know\n!"


def test_ids_stand_for_themselves_and_a_first_token_has_no_row(read: Read) -> None:
    (sample,) = read({"opening": "", "spans": [{"role": "plan", "ids": [5, 6]}, {"role": "plan", "ids": [7]}]}).samples
    assert (sample.ids, sample.rows, sample.targets) == ([5, 6], [0, 1], [6, 7])


def test_an_opening_of_messages_ends_where_the_assistant_speaks(read: Read, tokenizer: Any) -> None:
    opening = [{"role": "user", "content": "yes"}]
    (sample,) = read({"opening": opening, "spans": [span("plan", "no")]}).samples
    assert tokenizer.decode(sample.ids + sample.targets[-1:]) == "user: yes<|eos|>\nassistant: no"


def test_a_conversation_teaches_what_the_assistant_generates(read: Read, tokenizer: Any) -> None:
    talk = [("user", "one"), ("assistant", "two"), ("user", "three"), ("assistant", "four")]
    messages = [{"role": role, "content": content} for role, content in talk]
    (sample,) = read({"messages": messages}, role=None).samples
    assert tokenizer.decode(sample.targets) == "two<|eos|>four<|eos|>"
    assert sample.targets[-1] == tokenizer.eos_token_id
    assert "user: three<|eos|>\nassistant: four" in tokenizer.decode(sample.ids)


def test_long_samples_are_cut_and_counted(read: Read) -> None:
    whole = read(TRAJECTORY).samples[0]
    found = read(TRAJECTORY, TRAJECTORY, max_length=whole.rows[0] + 3)
    assert found.truncated == 2
    assert found.samples[0].rows == whole.rows[:2]
    assert found.samples[0].targets == whole.targets[:2]
    assert len(found.samples[0].ids) + 1 == whole.rows[0] + 3
    with pytest.raises(DescantError, match=r"line 1: nothing .* is left in the first 3 tokens: raise --max-length"):
        read(TRAJECTORY, max_length=3)


def test_trajectories_in_which_the_role_is_silent_are_left_out(read: Read) -> None:
    found = read(TRAJECTORY, {"opening": "x", "spans": [span("act", "y")]})
    assert (len(found.samples), found.silent) == (1, 1)


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ([], "is empty: give at least one sample"),
        (["", "  "], "is empty"),
        ([TRAJECTORY, "{"], r"line 2 is not valid JSON \(Expecting property name[^:]*\): write one"),
        (["[]"], "line 1 is no sample"),
        ([{"text": "x"}], "line 1 is no sample: it needs messages, or opening and a list of spans"),
        ([{"opening": "x", "spans": ["y"]}], "line 1, span 1 is no span"),
        ([{"opening": "x", "spans": [{"role": "plan"}]}], "line 1, span 1 has neither text nor ids"),
        ([{"opening": "x", "spans": [{"role": "plan", "ids": [99999]}]}], "none of the tokenizer's 410 tokens"),
        ([{"opening": [], "spans": []}], "holds no conversation"),
        ([{"messages": [{"role": "assistant", "content": "x"}]}], "a user's or a system's first"),
        ([{"messages": [{"role": "user", "content": "x"}]}], "The assistant never speaks"),
        ([{"opening": "x", "spans": [span("act", "y"), span("reflect", "z")]}], "has no span in .* act, reflect"),
        ([{"opening": "x", "spans": [span("plan", "")]}], "The role plan never speaks"),
    ],
)
def test_what_cannot_be_learned_from_is_one_sentence(read: Read, lines: list[Any], words: str) -> None:
    with pytest.raises(DescantError, match=words) as refused:
        read(*lines)
    assert "\n" not in str(refused.value)
    assert str(refused.value).endswith(".")


def test_trajectories_without_a_role_ask_for_one(read: Read) -> None:
    with pytest.raises(DescantError, match=r"say whose by --role; there are act, plan\.$"):
        read(TRAJECTORY, role=None)


def test_a_template_that_rewrites_or_is_missing_is_told(read: Read, tokenizer: Any, monkeypatch: Any) -> None:
    opening = [{"role": "user", "content": "yes"}]
    talk = [*opening, {"role": "assistant", "content": "no"}]
    monkeypatch.setattr(tokenizer, "chat_template", "{{ messages | length }}")
    with pytest.raises(DescantError, match="rewrites earlier messages"):
        read({"messages": talk})
    monkeypatch.setattr(tokenizer, "chat_template", "{{ raise_exception('only tools') }}")
    with pytest.raises(DescantError, match=r"refuses these messages \(only tools\)"):
        read({"messages": talk})
    monkeypatch.setattr(tokenizer, "chat_template", None)
    with pytest.raises(DescantError, match="no chat template: give the opening as a string"):
        read({"opening": opening, "spans": []})


def test_a_file_that_is_not_there(tokenizer: Any, tmp_path: Path) -> None:
    with pytest.raises(DescantError, match=r"cannot be read .No such file"):
        read_samples(tmp_path / "none.jsonl", tokenizer, None, 10)
