"""Text as the look-up tools compare and divide it."""

from __future__ import annotations

import re
import unicodedata

# An end mark, what closes behind it, and white space; the scripts without spaces end a sentence by the mark alone.
_END = re.compile(r"(?<![.!?…।])[.!?…।]+[\"'”’»)\]]*\s+|[。！？][」』”]?\s*|\n\s*")  # noqa: RUF001
_ABBREVIATIONS = frozenset(
    (
        *("mr", "mrs", "ms", "dr", "prof", "rev", "hon", "sen", "rep", "gov", "pres", "st", "jr", "sr", "mt", "ft"),
        *("gen", "col", "maj", "capt", "lt", "sgt", "cmdr", "adm", "dept", "inc", "ltd", "co", "corp", "bros"),
        *("vs", "etc", "no", "nos", "vol", "est", "approx", "ca", "cf", "e.g", "i.e"),
    )
)


def fold(text: str) -> str:
    """Lower case, no accents, single spaces."""
    letters = unicodedata.normalize("NFKD", text)
    return " ".join("".join(c for c in letters if not unicodedata.combining(c)).casefold().split())


def words(text: str) -> list[str]:
    """The words of `text`, folded, without punctuation."""
    return "".join(c if c.isalnum() else " " for c in fold(text)).split()


def sentences(text: str) -> list[str]:
    """The sentences of `text`, by its end marks and line breaks: a rule of thumb, without a model.

    A full stop behind an initial (`E. Gordon Gee`, `U.S. Senate`) or a common abbreviation, or before a lower-case
    letter, does not end one.
    """
    found: list[str] = []
    start = 0
    for match in _END.finditer(text):
        if "\n" not in match[0] and not _ends(text[start : match.end()], text[match.end() : match.end() + 1]):
            continue
        found.append(text[start : match.end()].strip())
        start = match.end()
    return [sentence for sentence in [*found, text[start:].strip()] if sentence]


def _ends(sentence: str, following: str) -> bool:
    if following.islower():
        return False
    word = sentence.split()[-1].lstrip("\"'“‘«([")  # noqa: RUF001
    if not word.endswith("."):
        return True
    stem = word[:-1]
    return not (len(stem.rsplit(".", 1)[-1]) == 1 and stem[-1].isalpha() and stem[-1].isupper()) and (
        stem.casefold() not in _ABBREVIATIONS
    )
