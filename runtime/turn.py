"""What came of one request, and the errors that end one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from descant.runtime.errors import DescantError


@dataclass(frozen=True)
class Turn:
    """One request: what was asked, and what came back.

    agent: the adapter that answered; None for the base model.
    sampling: the sampling parameters that were sent.
    output_ids: the sampled token ids, as they came.
    text: their text, without special tokens and without what a stop string cut off.
    prompt_tokens: length of the prompt, in tokens.
    cached_tokens: how many of them came from the KV cache.
    cross_agent: how many of those another agent's request had written (0 where the scheme does not share).
    ttft: seconds from sending the request to the first token.
    latency: seconds to the last one.
    meta_info: what else the server said of the last token (SGLang's meta_info).
    """

    agent: str | None
    sampling: Mapping[str, Any]
    output_ids: list[int]
    text: str
    prompt_tokens: int
    cached_tokens: int
    cross_agent: int
    ttft: float
    latency: float
    meta_info: Mapping[str, Any] = field(repr=False)
    trajectory: Sequence[int] = field(repr=False)  # starts with the prompt; its session may have added to it since

    @property
    def prompt_ids(self) -> Sequence[int]:
        """The whole prompt."""
        return self.trajectory[: self.prompt_tokens]

    @property
    def prefilled(self) -> int:
        """Prompt tokens that had to be computed."""
        return self.prompt_tokens - self.cached_tokens

    @property
    def matched(self) -> int | str | None:
        """The token id, stop string or stop pattern that ended the answer; None if its length did, or nothing yet."""
        finish = self.meta_info.get("finish_reason") or {}
        return finish.get("matched")

    @property
    def stop_id(self) -> int | None:
        """The token id that ended the answer, which is then the last of output_ids."""
        ended = self.output_ids and self.matched == self.output_ids[-1]
        return self.output_ids[-1] if ended else None


class RequestError(DescantError):
    """The server refused a request, or could not be reached."""


class Unreachable(RequestError):
    """No connection to the server, or none that lasted until its answer."""


class ContextFull(RequestError):
    """The prompt, or what was asked for behind it, does not fit the model's context."""


class InterruptedTurn(RequestError):
    """An answer that ended before its time: the server went away, or ended it.

    partial: what had come until then, ids and text.
    """

    def __init__(self, message: str, partial: Turn) -> None:
        super().__init__(message)
        self.partial = partial


class TurnTimeout(InterruptedTurn):
    """An answer that was not complete in time."""


class TurnCancelled(InterruptedTurn):
    """An answer that its session's cancel() ended."""
