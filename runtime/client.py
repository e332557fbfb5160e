"""Clients that speak token ids, so that what one agent said is, id for id, what the next one reads."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, closing, contextmanager, suppress
from functools import partial
from types import TracebackType
from typing import Any, TypeVar

import httpx

from descant.runtime import api_key, protocol
from descant.runtime.protocol import Answer, Call, Steps
from descant.runtime.turn import RequestError, Turn, TurnTimeout

T = TypeVar("T")
NOT_SENT = (httpx.ConnectError, httpx.ConnectTimeout)
OPTIONS: Mapping[str, Any] = {
    "trust_env": False,  # a proxy meant for the internet must not stand between us and a loopback address
    "limits": httpx.Limits(keepalive_expiry=2),  # the server closes what was idle for 5 s: do not race with it
}


class Client:
    """Requests to one server, from one or more threads.

    Args:
        url: the server's address, "http://127.0.0.1:30000".
        timeout: seconds without any byte from the server until a request fails.
        retry_for: seconds for which a server that refuses connections is waited for. Nothing that was sent is sent
            again.
        key: what the server was started with as --api-key; $DESCANT_API_KEY if None.
    """

    def __init__(self, url: str, *, timeout: float = 300.0, retry_for: float = 0.0, key: str | None = None) -> None:
        self.url = url
        self._http = httpx.Client(base_url=_address(url), timeout=timeout, headers=_headers(key), **OPTIONS)
        self._timeout, self._retry_for = timeout, retry_for

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._http.close()

    def call(self, call: Call[T]) -> T:
        """The result of one call.

        Raises:
            RequestError: the server refused it, or cannot be reached.
        """
        return call.result(self.url, self._send(_request(self._http, call)))

    def run(self, steps: Steps[T]) -> T:
        """The result of several calls."""
        try:
            call = next(steps)
            while True:
                try:
                    result = self.call(call)
                except RequestError as error:
                    call = steps.throw(error)
                else:
                    call = steps.send(result)
        except StopIteration as done:
            value: T = done.value
            return value

    def stream(self, answer: Answer) -> Generator[str]:
        """Send the request of `answer` and yield its text as it comes. Leaving early aborts it on the server.

        Raises:
            RequestError: the server refused the request, or cannot be reached.
            InterruptedTurn: the server went away in mid-answer, or the answer was ended; nothing is sent again.
        """
        timer = None
        if answer.timeout is not None:
            timer = threading.Timer(answer.timeout, answer.end, [TurnTimeout])
            timer.daemon = True
            timer.start()
        try:
            with self._open(answer) as response:
                # The socket, since no other thread may touch httpx's objects.
                stream = response.extensions["network_stream"]
                answer.on_end(partial(_shut, stream.get_extra_info("socket")))
                if response.status_code != 200:
                    response.read()
                    answer.over = True
                    raise protocol.refusal(response)
                for data in response.iter_bytes():
                    if piece := answer.feed(data, self.url):
                        yield piece
                    answer.check()
            if not answer.over:
                raise answer.lost(self.url)
        except httpx.DecodingError as error:
            raise protocol.foreign(self.url, "its answer cannot be decoded") from error
        except httpx.TransportError as error:
            if not answer.over:
                raise answer.lost(self.url, error) from error
        finally:
            if timer is not None:
                timer.cancel()
            if answer.sent and not answer.over:
                with suppress(httpx.TransportError):
                    self._http.send(_request(self._http, protocol.abort(answer.rid), protocol.ABORT_PATIENCE_S))

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
            RequestError: as `stream`.
        """
        answer = Answer(list(input_ids), adapter, sampling_params)
        with closing(self.stream(answer)) as pieces:
            for piece in pieces:
                if on_text is not None:
                    on_text(piece)
        return answer.turn()

    def tokenize(self, text: str) -> list[int]:
        """The ids of `text`, with no special tokens around them.

        Raises:
            RequestError: the server cannot be reached or has no tokenizer.
        """
        return self.call(protocol.tokenize(text))

    def tokenize_chat(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        """The ids of a conversation as the model's chat template writes it, up to where the assistant speaks.

        Raises:
            RequestError: the server cannot be reached, or its model has no chat template.
        """
        return self.call(protocol.tokenize_chat(messages))

    def server_info(self) -> dict[str, Any]:
        """What GET /server_info answers."""
        return self.call(protocol.server_info())

    @contextmanager
    def _open(self, answer: Answer) -> Iterator[httpx.Response]:
        # A server that hangs before its answer begins is left when the turn's time is over.
        patience = self._timeout if answer.timeout is None else min(self._timeout, answer.timeout + 0.5)
        request = self._http.build_request("POST", "/generate", json=answer.body, timeout=patience)
        response = self._send(request, answer)
        try:
            yield response
        finally:
            response.close()

    def _send(self, request: httpx.Request, answer: Answer | None = None) -> httpx.Response:
        delays = protocol.backoff(self._retry_for)
        while True:
            try:
                if answer is not None:
                    answer.check()
                    answer.sent = True
                return self._http.send(request, stream=answer is not None)
            except NOT_SENT as error:
                if answer is not None:
                    answer.sent = False
                if (delay := next(delays, None)) is None:
                    raise protocol.unreachable(self.url, error) from error
                time.sleep(delay)
            except httpx.DecodingError as error:
                raise protocol.foreign(self.url, "its answer cannot be decoded") from error
            except httpx.TransportError as error:
                if answer is not None:
                    raise
                raise protocol.unreachable(self.url, error) from error


class AsyncClient:
    """As `Client`, in one event loop."""

    def __init__(self, url: str, *, timeout: float = 300.0, retry_for: float = 0.0, key: str | None = None) -> None:
        self.url = url
        self._http = httpx.AsyncClient(base_url=_address(url), timeout=timeout, headers=_headers(key), **OPTIONS)
        self._retry_for = retry_for

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        await self._http.aclose()

    async def call(self, call: Call[T]) -> T:
        """As `Client.call`."""
        return call.result(self.url, await self._send(_request(self._http, call)))

    async def run(self, steps: Steps[T]) -> T:
        """As `Client.run`."""
        try:
            call = next(steps)
            while True:
                try:
                    result = await self.call(call)
                except RequestError as error:
                    call = steps.throw(error)
                else:
                    call = steps.send(result)
        except StopIteration as done:
            value: T = done.value
            return value

    async def stream(self, answer: Answer) -> AsyncGenerator[str]:
        """As `Client.stream`; cancelling the task also aborts the request on the server.

        A loop that may be left early must close it: `async with contextlib.aclosing(client.stream(answer))`.
        """
        response = None
        try:
            async with _until_ended(answer):
                request = self._http.build_request("POST", "/generate", json=answer.body)
                response = await self._send(request, answer)
                if response.status_code != 200:
                    await response.aread()
                    answer.over = True
                    raise protocol.refusal(response)
            chunks = response.aiter_bytes()
            while True:
                async with _until_ended(answer):
                    data = await anext(chunks, None)
                if data is None:
                    break
                if piece := answer.feed(data, self.url):
                    yield piece
                answer.check()
            if not answer.over:
                raise answer.lost(self.url)
        except httpx.DecodingError as error:
            raise protocol.foreign(self.url, "its answer cannot be decoded") from error
        except httpx.TransportError as error:
            if not answer.over:
                raise answer.lost(self.url, error) from error
        finally:
            if answer.sent and not answer.over:
                with suppress(httpx.TransportError):
                    await self._http.send(_request(self._http, protocol.abort(answer.rid), protocol.ABORT_PATIENCE_S))
            if response is not None:
                await response.aclose()

    async def _send(self, request: httpx.Request, answer: Answer | None = None) -> httpx.Response:
        delays = protocol.backoff(self._retry_for)
        while True:
            try:
                if answer is not None:
                    answer.sent = True
                return await self._http.send(request, stream=answer is not None)
            except NOT_SENT as error:
                if answer is not None:
                    answer.sent = False
                if (delay := next(delays, None)) is None:
                    raise protocol.unreachable(self.url, error) from error
                await asyncio.sleep(delay)
            except httpx.DecodingError as error:
                raise protocol.foreign(self.url, "its answer cannot be decoded") from error
            except httpx.TransportError as error:
                if answer is not None:
                    raise
                raise protocol.unreachable(self.url, error) from error


def _address(url: str) -> httpx.URL:
    try:
        address = httpx.URL(url)
    except (httpx.InvalidURL, ValueError) as error:
        raise RequestError(f"The address {url[:200]!r} cannot be read ({error}): write http://HOST:PORT.") from error
    if address.scheme not in ("http", "https") or not address.host:
        raise RequestError(f"The address {url[:200]!r} is no server's: write http://HOST:PORT.")
    return address


def _headers(key: str | None) -> dict[str, str]:
    return api_key.headers(api_key.api_key() if key is None else api_key.checked(key))


def _request(http: httpx.Client | httpx.AsyncClient, call: Call[Any], timeout: float | None = None) -> httpx.Request:
    method = "GET" if call.body is None else "POST"
    patience: float | httpx.Timeout = http.timeout
    if timeout is None and call.patience is not None:
        timeout = min(call.patience, http.timeout.read or call.patience)
    return http.build_request(method, call.path, json=call.body, timeout=patience if timeout is None else timeout)


def _shut(connection: socket.socket) -> None:
    with suppress(OSError):  # the other side was faster
        connection.shutdown(socket.SHUT_RDWR)


@asynccontextmanager
async def _until_ended(answer: Answer) -> AsyncIterator[None]:
    """Leave the block when the answer's time is over, or it is ended from any thread: with that as the error."""
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(answer.remaining) as scope:
            answer.on_end(partial(loop.call_soon_threadsafe, _expire, scope))
            yield
    except TimeoutError:
        answer.end(TurnTimeout)  # unless it was ended for another reason
        answer.check()


def _expire(scope: asyncio.Timeout) -> None:
    with suppress(RuntimeError):  # the block has been left
        scope.reschedule(0)
