"""HotpotQA (Yang et al. 2018, arXiv 1809.09600): its questions, their paragraphs as passages, and its measures."""

from __future__ import annotations

import json
import re
import string
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from descant.runtime.errors import DescantError

_ARTICLE = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ALL_OR_NOTHING = frozenset({"yes", "no", "noanswer"})


@dataclass(frozen=True)
class Question:
    """One question.

    kind: "bridge" or "comparison".
    level: "easy", "medium" or "hard".
    context: title and sentences of each paragraph that comes with it; a sentence holds the space before it.
    supporting: title and sentence index of each fact that the answer rests on.
    """

    id: str
    question: str
    answer: str
    kind: str
    level: str
    context: tuple[tuple[str, tuple[str, ...]], ...]
    supporting: tuple[tuple[str, int], ...]


def read_questions(path: Path) -> list[Question]:
    """The questions in `path`: one JSON object a line, or one array of them as in the dataset's own files.

    Raises:
        DescantError: it cannot be read, or an entry is no question; names the line, or the entry's number.
    """
    questions: list[Question] = []
    where = ""
    try:
        for place, item in _entries(path.read_text(encoding="utf-8-sig")):
            where = place
            questions.append(_question(json.loads(item) if isinstance(item, str) else item))
    except OSError as error:
        raise DescantError(f"The questions {path} cannot be read: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise DescantError(f"The questions {path} are not UTF-8: save the file as UTF-8.") from error
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise DescantError(f"{path}{where} is no HotpotQA question ({type(error).__name__}: {error}).") from error
    if not questions:
        raise DescantError(f"{path} has no questions: write one JSON object a line.")
    return questions


def _entries(text: str) -> Iterator[tuple[str, Any]]:
    """Where each entry stands, and the entry: a line of JSON, or an item of the one array."""
    if text.lstrip().startswith("["):
        for number, item in enumerate(json.loads(text), start=1):
            yield f", entry {number}", item
    else:
        for number, line in enumerate(text.split("\n"), start=1):
            if line.strip():
                yield f", line {number}", line


def _question(item: dict[str, Any]) -> Question:
    question = Question(
        id=item["id"] if "id" in item else item["_id"],
        question=item["question"],
        answer=item["answer"],
        kind=item["type"],
        level=item["level"],
        context=tuple((title, tuple(sentences)) for title, sentences in item["context"]),
        supporting=tuple((title, int(index)) for title, index in item["supporting_facts"]),
    )
    texts = [question.id, question.question, question.answer]
    for title, sentences in question.context:
        texts += (title, *sentences)
    for text in texts:
        if not isinstance(text, str):
            raise TypeError(f"{text!r} is no text")
        text.encode()  # half of a surrogate pair is JSON, but no text
    if not question.question.strip():
        raise ValueError("the question is empty")
    return question


def write_passages(questions: Iterable[Question], path: Path) -> None:
    """Write the paragraphs of all `questions` to `path` in the form that `Passages` reads, each title once.

    A paragraph that comes with several questions is the same in each.

    Raises:
        DescantError: there are no paragraphs.
    """
    paragraphs = {
        title.strip(): "".join(sentences)
        for question in questions
        for title, sentences in question.context
        if title.strip()
    }
    if not paragraphs:
        raise DescantError("No question comes with a titled paragraph in its context, so there is nothing to search.")
    lines = [json.dumps({"title": title, "text": text}, ensure_ascii=False) for title, text in paragraphs.items()]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def normalise(answer: str) -> str:
    """Lower case, no punctuation, no articles, single spaces."""
    return " ".join(_ARTICLE.sub(" ", answer.lower().translate(_PUNCTUATION)).split())


def exact_match(prediction: str, answer: str) -> bool:
    """Whether both are the same when normalised."""
    return normalise(prediction) == normalise(answer)


def f1(prediction: str, answer: str) -> float:
    """The F1 of the prediction's tokens, normalised, as a bag; where either is yes, no or noanswer, 1 or 0."""
    predicted, expected = normalise(prediction), normalise(answer)
    if predicted != expected and not _ALL_OR_NOTHING.isdisjoint((predicted, expected)):
        return 0.0
    tokens, wanted = predicted.split(), expected.split()
    common = (Counter(tokens) & Counter(wanted)).total()
    return 2 * common / (len(tokens) + len(wanted)) if common else 0.0
