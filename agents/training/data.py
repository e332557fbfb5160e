"""What adapters are trained on: conversations, and trajectories of several roles, as JSONL.

A trajectory is tokenized as a session builds it: the opening by the chat template, then each span by itself. The role's
tokens therefore stand behind the very ids that the server will have in its cache.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from descant.runtime.errors import DescantError

Piece = tuple[list[int], bool]  # ids, and whether the loss counts them


@dataclass(frozen=True)
class Sample:
    """One sequence and the rows that learn.

    ids: the tokens that are read, up to the last one that a target follows.
    rows: indices into ids, ascending.
    targets: for each row, the token to say next.
    """

    ids: list[int]
    rows: list[int]
    targets: list[int]


@dataclass
class Samples:
    """What a file held.

    truncated: how many samples were cut at `--max-length`.
    silent: how many trajectories the role does not speak in, and which are left out.
    """

    samples: list[Sample] = field(default_factory=list)
    truncated: int = 0
    silent: int = 0


def read_samples(file: Path, tokenizer: Any, role: str | None, max_length: int) -> Samples:
    """The samples in `file` that teach something.

    Args:
        tokenizer: the base model's, from Transformers.
        role: whose spans count in the loss; conversations need none.
        max_length: tokens that a sample may have; what is beyond is cut off.

    Raises:
        DescantError: one sentence, with the line, on what cannot be learned from.
    """
    found, roles, spoken = Samples(), set[str](), False
    for place, line in _lines(file):
        pieces, speakers = _pieces(place, line, tokenizer, role)
        roles |= speakers
        sample = _sample(pieces)
        if not sample.rows:
            found.silent += 1
            continue
        spoken = True
        # The last target is not read, so `max_length` of them are read and one more is said at most.
        if len(sample.ids) + 1 > max_length:
            sample = _cut(sample, max_length)
            found.truncated += 1
            if not sample.rows:
                raise DescantError(
                    f"{place}: nothing that counts in the loss is left in the first {max_length} tokens: "
                    f"raise --max-length or remove this line."
                )
        found.samples.append(sample)
    if not found.samples and not found.silent:
        raise DescantError(f"{file} is empty: give at least one sample, one JSON object a line.")
    if roles and not spoken and role not in roles:
        said = f"--role {role} has no span in {file}" if role else f"{file} holds trajectories: say whose by --role"
        raise DescantError(f"{said}; there are {', '.join(sorted(roles))}.")
    if not spoken:
        who = f"The role {role}" if roles else "The assistant"
        raise DescantError(f"{who} never speaks in {file}: there is nothing to learn from.")
    return found


def _lines(file: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each JSON object in `file`, and where it stands."""
    try:
        with file.open(encoding="utf-8") as stream:
            for number, text in enumerate(stream, 1):
                place = f"{file}, line {number}"
                if not text.strip():
                    continue
                try:
                    line = json.loads(text)
                except (ValueError, RecursionError) as error:
                    reason = getattr(error, "msg", error)  # without json's own line number, which is always 1
                    raise DescantError(f"{place} is not valid JSON ({reason}): write one object a line.") from error
                if not isinstance(line, dict):
                    raise DescantError(f"{place} is no sample: write an object with messages, or opening and spans.")
                yield place, line
    except OSError as error:
        raise DescantError(f"{file} cannot be read ({error.strerror}): check the path.") from error
    except UnicodeDecodeError as error:
        raise DescantError(f"{file} is not UTF-8 ({error.reason} at byte {error.start}): convert it.") from error


def _pieces(place: str, line: Mapping[str, Any], tokenizer: Any, role: str | None) -> tuple[list[Piece], set[str]]:
    """The pieces of a sample, and the roles that have a span in it."""
    if "messages" in line:
        return _conversation(place, _messages(place, line["messages"]), tokenizer), set()
    if "opening" not in line or not isinstance(line.get("spans"), list):
        raise DescantError(f"{place} is no sample: it needs messages, or opening and a list of spans.")
    opening = line["opening"]
    text = opening if isinstance(opening, str) else _chat(place, tokenizer, _messages(place, opening), prompt=True)
    pieces: list[Piece] = [(_ids(tokenizer, text), False)]
    roles = set()
    for number, span in enumerate(line["spans"], 1):
        ids, speaker = _span(f"{place}, span {number}", span, tokenizer)
        pieces.append((ids, speaker is not None and speaker == role))
        if speaker is not None:
            roles.add(speaker)
    return pieces, roles


def _span(place: str, span: Any, tokenizer: Any) -> tuple[list[int], str | None]:
    if not isinstance(span, dict) or not isinstance(span.get("role"), str | None):
        raise DescantError(f"{place} is no span: write an object with role (or null) and text.")
    if isinstance(ids := span.get("ids"), list):
        if not all(type(token) is int and 0 <= token < len(tokenizer) for token in ids):
            raise DescantError(f"{place} has ids that are none of the tokenizer's {len(tokenizer)} tokens.")
        return ids, span.get("role")
    if not isinstance(span.get("text"), str):
        raise DescantError(f"{place} has neither text nor ids: write one of them.")
    return _ids(tokenizer, span["text"]), span.get("role")


def _messages(place: str, messages: Any) -> list[dict[str, Any]]:
    named = isinstance(messages, list) and all(
        isinstance(message, dict) and isinstance(message.get("role"), str) and isinstance(message.get("content"), str)
        for message in messages
    )
    if not named or not messages or messages[0]["role"] == "assistant":
        raise DescantError(
            f"{place} holds no conversation: list messages with role and content, a user's or a system's first."
        )
    return messages


def _conversation(place: str, messages: list[dict[str, Any]], tokenizer: Any) -> list[Piece]:
    """The loss counts what the assistant generates: behind the template's cue, up to the token that ends its turn."""
    pieces: list[Piece] = []
    written = ""

    def write(text: str, counts: bool = False) -> None:
        nonlocal written
        if not text.startswith(written):
            raise DescantError(
                f"{place}: the chat template rewrites earlier messages, so this conversation cannot be learned as one: "
                f"give one line for each answer, or a trajectory."
            )
        ids = _ids(tokenizer, text[len(written) :])
        end = ids.index(tokenizer.eos_token_id) + 1 if counts and tokenizer.eos_token_id in ids else len(ids)
        pieces.extend([(ids[:end], counts), (ids[end:], False)])
        written = text

    for index, message in enumerate(messages):
        if message["role"] == "assistant":
            write(_chat(place, tokenizer, messages[:index], prompt=True))
            write(_chat(place, tokenizer, messages[: index + 1], prompt=False), counts=True)
    return pieces


def _chat(place: str, tokenizer: Any, messages: Sequence[Mapping[str, Any]], prompt: bool) -> str:
    if not tokenizer.chat_template:
        raise DescantError(f"{place} holds messages, but the model has no chat template: give the opening as a string.")
    try:
        return tokenizer.apply_chat_template(list(messages), tokenize=False, add_generation_prompt=prompt)
    except Exception as error:  # a template is a program, and may raise what it likes
        raise DescantError(f"{place}: the model's chat template refuses these messages ({error}).") from error


def _ids(tokenizer: Any, text: str) -> list[int]:
    """As the server's /tokenize does for sessions."""
    return tokenizer.encode(text, add_special_tokens=False)


def _sample(pieces: Sequence[Piece]) -> Sample:
    ids = [token for piece, _ in pieces for token in piece]
    counted = [counts for piece, counts in pieces for _ in piece]
    rows = [row for row in range(len(ids) - 1) if counted[row + 1]]
    # No row can see what follows the last one.
    return Sample(ids[: rows[-1] + 1] if rows else [], rows, [ids[row + 1] for row in rows])


def _cut(sample: Sample, max_length: int) -> Sample:
    kept = sum(row + 1 < max_length for row in sample.rows)
    rows = sample.rows[:kept]
    return Sample(sample.ids[: rows[-1] + 1] if rows else [], rows, sample.targets[:kept])
