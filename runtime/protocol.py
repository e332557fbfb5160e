"""What is said to a server and what its answers mean, without any input or output: both clients are made of this."""

from __future__ import annotations

import json
import threading
import time
import uuid
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import httpx

from descant.runtime.turn import (
    ContextFull,
    InterruptedTurn,
    RequestError,
    Turn,
    TurnCancelled,
    TurnTimeout,
    Unreachable,
)

T = TypeVar("T")
FIRST_DELAY_S, LONGEST_DELAY_S = 0.05, 0.5
ABORT_PATIENCE_S = 2.0
INFO_PATIENCE_S = 30.0  # for what a server says of itself
# What reading an answer of another form than SGLang's comes to.
MISREAD = (ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError)


@dataclass(frozen=True)
class Call(Generic[T]):
    """One request with one response.

    body: sent as JSON by POST; None sends a GET.
    read: the result, from a response with status 200.
    failure: how the error begins for any other status.
    patience: seconds without a byte until it fails, where that is less than its client's.
    """

    path: str
    body: Mapping[str, Any] | None
    read: Callable[[httpx.Response], T]
    failure: str
    patience: float | None = None

    def result(self, url: str, response: httpx.Response) -> T:
        """Raises RequestError if the server at `url` did not do what it was asked, or is none of SGLang's."""
        if response.status_code != 200:
            raise RequestError(f"{self.failure}: {_message(response)}")
        try:
            return self.read(response)
        except MISREAD as error:
            raise foreign(url, f"{self.path} answers something else") from error


# What takes several calls is written once, as a generator that yields each call and is sent its result.
Steps = Generator[Call[Any], Any, T]


def tokenize(text: str) -> Call[list[int]]:
    """The ids of `text`, with no special tokens around them."""
    return _tokenize({"prompt": text, "add_special_tokens": False})


def tokenize_each(texts: Sequence[str]) -> Call[list[list[int]]]:
    """The ids of each text."""
    return _tokenize({"prompt": list(texts), "add_special_tokens": False})


def tokenize_chat(messages: Sequence[Mapping[str, Any]]) -> Call[list[int]]:
    """The ids of a conversation as the model's chat template writes it, up to where the assistant speaks."""
    return _tokenize({"messages": list(messages), "add_generation_prompt": True})


def _tokenize(body: Mapping[str, Any]) -> Call[Any]:
    return Call("/tokenize", body, lambda response: response.json()["tokens"], "The server did not tokenize")


def detokenize(ids: Sequence[int]) -> Call[str]:
    """The text of `ids`, special tokens included."""
    return _detokenize(list(ids))


def detokenize_each(pieces: Sequence[Sequence[int]]) -> Call[list[str]]:
    """The text of each list of ids, special tokens included."""
    return _detokenize([list(piece) for piece in pieces])


def _detokenize(tokens: list[Any]) -> Call[Any]:
    body = {"tokens": tokens, "skip_special_tokens": False}
    return Call("/detokenize", body, lambda response: response.json()["text"], "The server did not detokenize")


def score(input_ids: Sequence[Any], agent: str | None, **more: Any) -> Call[Any]:
    """Process a prompt, or a list of prompts, under `agent` and generate nothing."""
    body = {"input_ids": input_ids, "lora_path": agent, "sampling_params": {"max_new_tokens": 0, "temperature": 0}}
    return Call("/generate", {**body, **more}, lambda response: response.json(), "The server refused the request")


def server_info() -> Call[dict[str, Any]]:
    """What GET /server_info answers."""
    failure = "The server does not answer /server_info"
    return Call("/server_info", None, _object, failure, INFO_PATIENCE_S)


def model_info() -> Call[dict[str, Any]]:
    """What GET /model_info answers."""
    failure = "The server does not answer /model_info"
    return Call("/model_info", None, _model, failure, INFO_PATIENCE_S)


def models() -> Call[list[dict[str, Any]]]:
    """What GET /v1/models lists: the base model, with its max_model_len, and each adapter, with its parent."""
    failure = "The server does not list its models"
    return Call("/v1/models", None, _cards, failure, INFO_PATIENCE_S)


def _object(response: httpx.Response) -> dict[str, Any]:
    return dict(response.json().items())


def _model(response: httpx.Response) -> dict[str, Any]:
    info = _object(response)
    if not isinstance(info["model_path"], str):
        raise TypeError("no path of a model")
    return info


def _cards(response: httpx.Response) -> list[dict[str, Any]]:
    base, *adapters = response.json()["data"]
    if not isinstance(base["max_model_len"], int) or not all(isinstance(card["id"], str) for card in (base, *adapters)):
        raise TypeError("no cards of models")
    return [base, *adapters]


def abort(rid: str) -> Call[None]:
    """End the request `rid`; nothing happens if the server does not have it."""
    return Call("/abort_request", {"rid": rid}, lambda _: None, "The server did not abort the request")


class Answer:
    """One streaming /generate request, and what has come of it so far.

    Args:
        trajectory: ids that start with the prompt; they may be added to, not changed.
        agent: adapter's name, or None for the base model.
        sampling: SGLang's sampling parameters.
        options: more fields of the request (return_logprob, …).
        timeout: seconds until the answer has to be complete.
    """

    def __init__(
        self,
        trajectory: Sequence[int],
        agent: str | None = None,
        sampling: Mapping[str, Any] | None = None,
        options: Mapping[str, Any] | None = None,
        timeout: float | None = None,
    ) -> None:
        self.rid = uuid.uuid4().hex
        self.timeout = timeout
        self.sent = self.over = False
        self._trajectory, self._prompt_tokens = trajectory, len(trajectory)
        self._agent, self._sampling, self._options = agent, dict(sampling or {}), options or {}
        self._buffer = b""
        self._output_ids: list[int] = []
        self._text = ""
        self._meta: dict[str, Any] = {}
        self._start = time.monotonic()
        self._cached = self._cross_agent = 0
        self._ttft = self._latency = 0.0
        self._lock = threading.Lock()
        self._ended_by: type[InterruptedTurn] | None = None
        self._hang_up: Callable[[], object] = lambda: None
        self._began = self._strange = False  # whether an event came, and a line that is of no event stream

    @property
    def body(self) -> dict[str, Any]:
        return {
            "rid": self.rid,
            "input_ids": list(self._trajectory[: self._prompt_tokens]),
            "lora_path": self._agent,
            "sampling_params": self._sampling,
            "stream": True,
            **self._options,
        }

    @property
    def remaining(self) -> float | None:
        """Seconds that are left, 0 or more; None without a limit."""
        return None if self.timeout is None else max(0.0, self._start + self.timeout - time.monotonic())

    def feed(self, data: bytes, url: str) -> str:
        """Take bytes of the event stream from `url`; return the text that they complete.

        Raises:
            RequestError: they say that the server refused the request, or are none of SGLang's.
            InterruptedTurn: they say that the server ended it.
        """
        # Lines end at \n alone: JSON may hold the other characters that str.splitlines() knows.
        *lines, self._buffer = (self._buffer + data).split(b"\n")
        self._strange |= any(line.strip() and not line.startswith(b"data:") for line in lines)
        try:
            return "".join(self._event(line[5:].strip()) for line in lines if line.startswith(b"data:"))
        except MISREAD as error:
            raise foreign(url, "/generate streams something else") from error

    def _event(self, data: bytes) -> str:
        if data == b"[DONE]":
            return ""
        event = json.loads(data)
        if error := event.get("error"):
            self.over = True
            raise _refused(_line(error.get("message", error)))
        self._meta = meta = event["meta_info"]
        self._began = True
        self._cached, self._cross_agent = int(meta.get("cached_tokens") or 0), cross_agent(meta)
        finish = meta.get("finish_reason")
        self.over = finish is not None
        if finish and finish["type"] == "abort":
            self.check()
            why = f"The server ended the request: {_line(finish['message'])}"
            raise InterruptedTurn(why, self.turn()) if self._output_ids else RequestError(why)
        self._latency = time.monotonic() - self._start
        self._ttft = self._ttft or self._latency
        # SGLang sends all ids so far, or the new ones alone under --incremental-streaming-output.
        incremental = len(event["output_ids"]) < meta["completion_tokens"]
        self._output_ids = [*(self._output_ids if incremental else ()), *map(int, event["output_ids"])]
        # There is no text without a tokenizer.
        text = event.get("text") or ""
        whole = self._text + text if incremental else text
        piece, self._text = whole[len(self._text) :], whole
        return piece

    def turn(self) -> Turn:
        """What has come so far."""
        return Turn(
            agent=self._agent,
            sampling=self._sampling,
            output_ids=list(self._output_ids),
            text=self._text,
            prompt_tokens=self._prompt_tokens,
            cached_tokens=self._cached,
            cross_agent=self._cross_agent,
            ttft=self._ttft,
            latency=self._latency,
            meta_info=self._meta,
            trajectory=self._trajectory,
        )

    def on_end(self, hang_up: Callable[[], object]) -> None:
        """`hang_up` will be called, from any thread, when the answer is to end early: at once if it already is."""
        with self._lock:
            self._hang_up = hang_up
            if self._ended_by is not None:
                hang_up()

    def end(self, why: type[InterruptedTurn]) -> None:
        """From any thread: have the answer end now. Only the first reason counts."""
        with self._lock:
            if self._ended_by is None and not self.over:
                self._ended_by = why
                self._hang_up()

    def check(self) -> None:
        """Raise TurnTimeout or TurnCancelled if the answer was ended."""
        if self.remaining == 0 and not self.over:
            self.end(TurnTimeout)
        if self._ended_by is not None:
            why = {TurnTimeout: f"was not over after {self.timeout} s", TurnCancelled: "was cancelled"}[self._ended_by]
            raise self._ended_by(f"The turn {why}: {len(self._output_ids)} tokens had come.", self.turn())

    def lost(self, url: str, error: httpx.TransportError | None = None) -> RequestError:
        """The error for a stream that broke off, or was none."""
        self.check()
        rest = self._buffer.strip()
        if not self._began and (self._strange or (rest and not rest.startswith(b"data:"[: len(rest)]))):
            return foreign(url, "/generate answers something else")
        reason = f" ({_reason(error)})" if error else ""
        return InterruptedTurn(
            f"The server at {url} broke off its answer{reason} after {len(self._output_ids)} tokens: see its log.",
            self.turn(),
        )


def settle(turn: Turn) -> Steps[list[int]]:
    """The ids of a complete answer that a trajectory takes: those of exactly the text that was returned.

    The id that ends a sequence stays out: it was sampled but not processed, so the cache does not hold it, and a later
    agent should not read that the text is over. Of an answer that a stop string ended, the ids wholly before the
    string stay, and what is left of the one that it cuts is tokenized anew.
    """
    ids, stop = turn.output_ids, turn.matched
    trimmed = not turn.sampling.get("no_stop_trim")
    if turn.stop_id is not None and trimmed:
        return ids[:-1]
    if not isinstance(stop, str):
        return ids
    # The string ended in the last id, so only so many can hold its bytes, or those of a character before it.
    first = max(0, len(ids) - len(stop.encode()) - 4)
    # As the server does: the text of an id may depend on those before it.
    context = [*turn.prompt_ids[-5:], *ids[:first]][-5:]
    texts = yield detokenize_each([[*context, *ids[first:end]] for end in range(first, len(ids) + 1)])
    pieces = [text[len(texts[0]) :] for text in texts]
    said = pieces[-1]
    if (cut := said.find(stop)) < 0:  # a stop pattern, which is not cut off
        return ids
    cut += 0 if trimmed else len(stop)
    whole = max(n for n, piece in enumerate(pieces) if len(piece) <= cut and said.startswith(piece))
    rest = said[len(pieces[whole]) : cut]
    tail = (yield tokenize(rest)) if rest else []
    return [*ids[: first + whole], *tail]


def cross_agent(meta: Mapping[str, Any]) -> int:
    """Cached tokens that another agent's request had written, from a response's meta_info."""
    return int((meta.get("cached_tokens_details") or {}).get("cross_agent", 0))


def backoff(seconds: float) -> Iterator[float]:
    """Delays in seconds, growing, until `seconds` are over."""
    deadline = time.monotonic() + seconds
    delay = FIRST_DELAY_S
    while time.monotonic() + delay <= deadline:
        yield delay
        delay = min(2 * delay, LONGEST_DELAY_S)


def unreachable(url: str, error: httpx.TransportError) -> Unreachable:
    if isinstance(error, httpx.ReadTimeout):
        return Unreachable(
            f"The server at {url} cannot be reached (it takes requests, and does not answer): see its log."
        )
    return Unreachable(f"The server at {url} cannot be reached ({_reason(error)}): see its log.")


def foreign(url: str, why: str) -> RequestError:
    """What an answer comes to that SGLang does not give."""
    return RequestError(f"What answers at {url} is no SGLang server: {why}; give the address of one.")


def _reason(error: httpx.TransportError) -> str:
    return str(error) or type(error).__name__


def _message(response: httpx.Response) -> str:
    """What an error response says: {"error": {"message": …}} or {"message": …}, by endpoint."""
    try:
        body = response.json()
        error = body.get("error", body)
        message = _line(error["message"] if isinstance(error, dict) else error)
    except (ValueError, KeyError, AttributeError):
        return f"HTTP {response.status_code} {_plain(response)}".strip()
    if "'NoneType' object has no attribute" in message:
        return "it has no tokenizer (--skip-tokenizer-init), so send token ids, or start it without that option."
    return message


def _plain(response: httpx.Response) -> str:
    """What a body says that is no error of SGLang's; of a page, the status alone says more."""
    text = _line(response.text[:200])
    return (
        response.reason_phrase if text.startswith("<") or "html" in response.headers.get("content-type", "") else text
    )


def _line(message: object) -> str:
    """SGLang breaks some of its messages into lines."""
    return " ".join(str(message).split())


def refusal(response: httpx.Response) -> RequestError:
    """The error for a stream that did not begin; the response's body must have been read."""
    return _refused(_message(response))


def _refused(why: str) -> RequestError:
    kind = ContextFull if "context length" in why else RequestError
    return kind(f"The server refused the request: {why}")
