"""A client that speaks token ids, so that what one agent said is, id for id, what the next one reads."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import httpx

from descant.runtime.errors import DescantError


class RequestError(DescantError):
    """The server refused a request, or could not be reached."""


@dataclass(frozen=True)
class Turn:
    """One answered request.

    output_ids: the sampled token ids, as they came.
    text: their text, without special tokens.
    prompt_tokens: length of the prompt, in tokens.
    cached_tokens: how many of them came from the KV cache.
    cross_agent: how many of those another agent's request had written (0 where the scheme does not share).
    ttft: seconds from sending the request to the first token.
    latency: seconds to the last one.
    stop_id: the token id that ended the answer, which is then the last of output_ids; None if its length did.
    """

    output_ids: list[int]
    text: str
    prompt_tokens: int
    cached_tokens: int
    cross_agent: int
    ttft: float
    latency: float
    stop_id: int | None

    @property
    def prefilled(self) -> int:
        """Prompt tokens that had to be computed."""
        return self.prompt_tokens - self.cached_tokens


class Client:
    """Requests to one server.

    Args:
        url: the server's address, "http://127.0.0.1:30000".
        timeout: seconds without any byte from the server until a request fails.
    """

    def __init__(self, url: str, *, timeout: float = 300.0) -> None:
        # A proxy meant for the internet must not stand between us and a loopback address.
        self._http = httpx.Client(base_url=url, timeout=timeout, trust_env=False)

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._http.close()

    def generate(
        self,
        input_ids: Sequence[int],
        *,
        adapter: str | None = None,
        sampling_params: Mapping[str, Any] | None = None,
        on_text: Callable[[str], None] | None = None,
    ) -> Turn:
        """Continue `input_ids` under `adapter` (None: the base model), streaming.

        Args:
            on_text: called with each new piece of the text as it comes.

        Raises:
            RequestError: the server refused the request, failed in it, or cannot be reached.
        """
        body = {
            "input_ids": list(input_ids),
            "lora_path": adapter,
            "sampling_params": dict(sampling_params or {}),
            "stream": True,
        }
        start = time.monotonic()
        ttft = latency = 0.0
        output_ids: list[int] = []
        text = ""
        meta: dict[str, Any] = {}
        for event in self._events(body):
            latency = time.monotonic() - start
            meta = event["meta_info"]
            if (finish := meta.get("finish_reason")) and finish["type"] == "abort":
                raise RequestError(f"The server ended the request: {_line(finish['message'])}")
            ttft = ttft or latency
            # SGLang sends all ids so far, or the new ones alone under --incremental-streaming-output.
            incremental = len(event["output_ids"]) < meta["completion_tokens"]
            output_ids = output_ids + event["output_ids"] if incremental else event["output_ids"]
            whole = text + event["text"] if incremental else event["text"]
            if on_text is not None and len(whole) > len(text):
                on_text(whole[len(text) :])
            text = whole
        if not meta:
            raise RequestError("The server closed the stream before the first token: see its log.")
        return Turn(
            output_ids=list(output_ids),
            text=text,
            prompt_tokens=meta["prompt_tokens"],
            cached_tokens=meta["cached_tokens"],
            cross_agent=int((meta.get("cached_tokens_details") or {}).get("cross_agent", 0)),
            ttft=ttft,
            latency=latency,
            stop_id=matched
            if output_ids and (matched := meta["finish_reason"].get("matched")) == output_ids[-1]
            else None,
        )

    def tokenize(self, text: str) -> list[int]:
        """The ids of `text`, with no special tokens around them.

        Raises:
            RequestError: the server cannot be reached or has no tokenizer.
        """
        return self._post_tokenize({"prompt": text, "add_special_tokens": False})

    def tokenize_chat(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        """The ids of a conversation as the model's chat template writes it, up to where the assistant speaks.

        Raises:
            RequestError: the server cannot be reached, or its model has no chat template.
        """
        return self._post_tokenize({"messages": list(messages), "add_generation_prompt": True})

    def server_info(self) -> dict[str, Any]:
        """What GET /server_info answers."""
        try:
            response = self._http.get("/server_info")
            response.raise_for_status()
            info: dict[str, Any] = response.json()
            return info
        except (httpx.HTTPError, ValueError) as error:
            raise RequestError(f"{self._http.base_url} does not answer /server_info: {error}") from error

    def _post_tokenize(self, body: dict[str, Any]) -> list[int]:
        try:
            response = self._http.post("/tokenize", json=body)
        except httpx.TransportError as error:
            raise self._unreachable(error) from error
        if response.status_code != 200:
            raise RequestError(f"The server did not tokenize: {_message(response)}")
        ids: list[int] = response.json()["tokens"]
        return ids

    def _unreachable(self, error: httpx.TransportError) -> RequestError:
        reason = str(error) or type(error).__name__
        return RequestError(f"The server at {self._http.base_url} cannot be reached ({reason}): see its log.")

    def _events(self, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """The server-sent events of one /generate request."""
        try:
            with self._http.stream("POST", "/generate", json=body) as response:
                if response.status_code != 200:
                    response.read()
                    raise RequestError(f"The server refused the request: {_message(response)}")
                for line in response.iter_lines():
                    data = line.removeprefix("data:").strip()
                    if not line.startswith("data:") or data == "[DONE]":
                        continue
                    event = json.loads(data)
                    if error := event.get("error"):
                        raise RequestError(f"The server refused the request: {_line(error.get('message', error))}")
                    yield event
        except httpx.TransportError as error:
            raise self._unreachable(error) from error


def _message(response: httpx.Response) -> str:
    """What an error response says: {"error": {"message": …}} or {"message": …}, by endpoint."""
    try:
        body = response.json()
        error = body.get("error", body)
        return _line(error["message"] if isinstance(error, dict) else error)
    except (ValueError, KeyError, AttributeError):
        return f"HTTP {response.status_code} {_line(response.text[:200])}"


def _line(message: object) -> str:
    """SGLang breaks some of its messages into lines."""
    return " ".join(str(message).split())
