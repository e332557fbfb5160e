"""What an agent reads of a tool's answer: text that can neither speak for an agent nor end a turn."""

from __future__ import annotations

import re
from dataclasses import dataclass

MAX_CHARS = 4_000  # about a thousand tokens

# Control characters, line and paragraph separators, and halves of surrogate pairs, which no UTF-8 request can hold.
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
# Where a special token can begin: `<` with anything right behind it, `[` around one word with a capital in it.
_OPENS = re.compile(r"<(?=\S)|\[(?=/?\w*[A-Z]\w*\])")


@dataclass(frozen=True)
class Observation:
    """The answer to one action.

    tool: the tool's name.
    argument: what the agent wrote between the brackets.
    text: what it reads: one line, clean.
    ok: False if the tool failed, was too slow, or could not be called with that argument.
    seconds: how long it took.
    """

    tool: str
    argument: str
    text: str
    ok: bool
    seconds: float


def clean(text: str) -> str:
    """`text` on one line, with nothing in it that a tokenizer takes for a special token.

    Two rules, which need to know neither the agents nor the model:

    - Line breaks and control characters become spaces, and spaces are folded. A cue begins a line, so a text that is
      written behind its own cue (`Observation: …`) can hold the words of another but never stand where one stands.
    - `<` is set off from what follows it, and `[` from a single word in brackets that has a capital. Special tokens of
      chat templates are written `<…>` or `[WORD]` (`<|im_end|>`, `</s>`, `<start_of_turn>`, `[/INST]`), and tokenizers
      know them by exact spelling, inside a text too; `< |im_end|>` is ordinary text.

    A model with special tokens of another form needs a tool that leaves them out. Cleaning twice changes nothing.
    """
    return _OPENS.sub(lambda match: match[0] + " ", " ".join(_CONTROL.sub(" ", text).split()))


def shorten(text: str, max_chars: int) -> str:
    """`text`, clean; if it is longer than `max_chars`, its beginning, and a note that says so."""
    shown = clean(text[: 8 * max_chars])  # a tool may give megabytes, and much of it white space
    if len(shown) <= max_chars and len(text) <= 8 * max_chars:
        return shown
    return f"{shown[:max_chars].rstrip()} … (cut at {max_chars} characters; in all there are {len(text)})"
