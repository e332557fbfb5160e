"""A session: the one append-only list of token ids that all agents of a workflow read and extend.

What agents sample is kept as the ids that came back, never as text that is tokenized again, so that every id that some
agent has processed is a cache hit for the next one.
"""

from __future__ import annotations

import json
import time
from collections.abc import AsyncGenerator, Callable, Generator, Iterator, Mapping, Sequence
from contextlib import aclosing, closing, contextmanager
from functools import partial
from types import TracebackType
from typing import Any

from descant.runtime import protocol
from descant.runtime.client import AsyncClient, Client
from descant.runtime.protocol import Answer, Steps
from descant.runtime.turn import InterruptedTurn, RequestError, Turn, TurnCancelled, TurnTimeout

__all__ = [
    "AsyncSession",
    "InterruptedTurn",
    "RequestError",
    "Session",
    "Turn",
    "TurnCancelled",
    "TurnTimeout",
]

OnText = Callable[[str], None]
Stop = str | Sequence[str]


class Trajectory:
    """What both sessions are, but for who does the calls.

    turns: one record for each turn that succeeded.
    """

    def __init__(self, ids: Sequence[int] = ()) -> None:
        self._ids = list(ids)
        self._cancel: Callable[[], None] | None = None
        self.turns: list[Turn] = []

    @property
    def ids(self) -> tuple[int, ...]:
        """All token ids so far."""
        return tuple(self._ids)

    def __len__(self) -> int:
        return len(self._ids)

    def append_ids(self, ids: Sequence[int]) -> None:
        """Append token ids of ours."""
        self._ids += ids

    def cancel(self) -> None:
        """From any thread: end the turn or program that is running, if any; it raises TurnCancelled to its caller."""
        if (cancel := self._cancel) is not None:
            cancel()

    @contextmanager
    def cancelled_by(self, cancel: Callable[[], None]) -> Iterator[None]:
        """Within the block, `cancel()` calls this."""
        self._cancel = cancel
        try:
            yield
        finally:
            self._cancel = None

    def accept(self, turn: Turn) -> None:
        """Append what a scored turn (see `score`) would say, and record it."""
        self._ids += turn.output_ids
        self.turns.append(turn)

    def _ask(
        self,
        agent: str | None,
        max_tokens: int | None = None,
        stop: Stop | None = None,
        regex: str | None = None,
        json_schema: str | Mapping[str, Any] | None = None,
        sampling: Mapping[str, Any] | None = None,
        timeout: float | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> Answer:
        schema = json.dumps(json_schema) if isinstance(json_schema, Mapping) else json_schema
        named = {"max_new_tokens": max_tokens, "stop": stop, "regex": regex, "json_schema": schema}
        params = {**(sampling or {}), **{name: value for name, value in named.items() if value is not None}}
        if params.get("n", 1) != 1:
            raise RequestError("n > 1 asks for several answers, and a trajectory has one: fork it instead.")
        return Answer(self._ids, agent, params, options, timeout)

    def _take(self, answer: Answer) -> Steps[None]:
        """Append what a complete answer said."""
        turn = answer.turn()
        try:
            ids = yield from protocol.settle(turn)
        except RequestError as error:
            raise InterruptedTurn(str(error), turn) from error
        self._ids += ids
        self.turns.append(turn)

    def _append(self, text: str) -> Steps[None]:
        self._ids += yield protocol.tokenize(text)

    def _score(self, agent: str | None, choices: Sequence[str]) -> Steps[list[Turn]]:
        start = time.monotonic()
        each = yield protocol.tokenize_each(choices)
        if not choices or not all(each):
            raise RequestError(f"There is nothing to choose from in {list(choices)!r}: each choice needs some text.")
        # The prefix first: the choices would otherwise all compute it at once.
        prefix = (yield protocol.score(self._ids, agent))["meta_info"]
        ttft = time.monotonic() - start
        scored = yield protocol.score(
            [self._ids + ids for ids in each], agent, return_logprob=True, logprob_start_len=len(self._ids) - 1
        )
        return [
            Turn(
                agent=agent,
                sampling={},
                output_ids=ids,
                text=choice,
                prompt_tokens=len(self._ids),
                cached_tokens=prefix["cached_tokens"],
                cross_agent=protocol.cross_agent(prefix),
                ttft=ttft,
                latency=time.monotonic() - start,
                # The first entry is that of the trajectory's last token, which has none.
                meta_info={"input_token_logprobs": answer["meta_info"]["input_token_logprobs"][1:]},
                trajectory=self._ids,
            )
            for choice, ids, answer in zip(choices, each, scored, strict=True)
        ]

    def _select(self, agent: str | None, choices: Sequence[str]) -> Steps[str]:
        best = max((yield from self._score(agent, choices)), key=mean_logprob)
        self.accept(best)
        return best.text


class Session(Trajectory):
    """A trajectory on a running server, for one thread at a time (but for `cancel`).

    A turn that fails, or is ended early, leaves the session as it was; what had come of it is in the error.

    Args:
        server: its address, or a client. A client that the session made is closed with it.
        ids: what the trajectory starts with.
    """

    def __init__(self, server: str | Client, ids: Sequence[int] = ()) -> None:
        super().__init__(ids)
        self._own_client = isinstance(server, str)
        self.client = Client(server) if isinstance(server, str) else server

    @classmethod
    def chat(cls, server: str | Client, messages: Sequence[Mapping[str, str]]) -> Session:
        """A session that starts with a conversation, as the model's chat template writes it.

        Raises:
            RequestError: the server cannot be reached, or its model has no chat template.
        """
        session = cls(server)
        session.append_ids(session.client.tokenize_chat(messages))
        return session

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        if self._own_client:
            self.client.close()

    def append(self, text: str) -> None:
        """Append words of ours, a cue or what a tool said: tokenized here and now, never again.

        Raises:
            RequestError: the server cannot be reached or has no tokenizer.
        """
        self.client.run(self._append(text))

    def text(self) -> str:
        """The text of the whole trajectory, special tokens included.

        Raises:
            RequestError: the server cannot be reached or has no tokenizer.
        """
        return self.client.call(protocol.detokenize(self._ids))

    def generate(self, agent: str | None, *, on_text: OnText | None = None, **arguments: Any) -> Turn:
        """Let `agent` (an adapter's name, or None for the base model) continue, and append the ids that it sampled.

        The arguments are those of `stream`.

        Args:
            on_text: called with each piece of the text as it comes.

        Raises:
            RequestError, InterruptedTurn: as `stream`.
        """
        with closing(self.stream(agent, **arguments)) as pieces:
            for piece in pieces:
                if on_text is not None:
                    on_text(piece)
        return self.turns[-1]

    def stream(
        self,
        agent: str | None,
        *,
        max_tokens: int | None = None,
        stop: Stop | None = None,
        regex: str | None = None,
        json_schema: str | Mapping[str, Any] | None = None,
        sampling: Mapping[str, Any] | None = None,
        timeout: float | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> Generator[str]:
        """As `generate`, yielding the text as it comes; the turn counts once the last piece was taken.

        To close the iterator early, or to be interrupted, aborts the request on the server.

        Args:
            max_tokens: how many tokens at most; the server's default if None.
            stop: strings at which the answer ends; they are no part of it.
            regex, json_schema: what the answer has to match.
            sampling: more of SGLang's sampling parameters.
            timeout: seconds for the whole turn.
            options: more fields of SGLang's request (return_logprob, …); the answers are in the turn's meta_info.

        Raises:
            RequestError: the server refused the request (no such adapter, prompt too long, …) or cannot be reached.
            TurnTimeout, TurnCancelled: the turn was ended early.
            InterruptedTurn: the server went away in the middle.
        """
        answer = self._ask(agent, max_tokens, stop, regex, json_schema, sampling, timeout, options)
        with self.cancelled_by(partial(answer.end, TurnCancelled)):
            yield from self.client.stream(answer)
        self.client.run(self._take(answer))

    def select(self, agent: str | None, choices: Sequence[str]) -> str:
        """Append the choice that `agent` finds likeliest, and return it.

        Each choice is tokenized by itself and scored after the whole trajectory. Its score is the mean log-probability
        of its tokens (as sglang's token_length_normalized), so that long choices are not worse for their length. The
        first of equals wins.

        Raises:
            RequestError: a choice is empty, or the server refused or cannot be reached.
        """
        return self.client.run(self._select(agent, choices))

    def score(self, agent: str | None, choices: Sequence[str]) -> list[Turn]:
        """What `select` compares: for each choice the turn that would say it, appended to nothing yet.

        Its meta_info["input_token_logprobs"] has a [log-probability, id, None] for each token of the choice.

        Raises:
            RequestError: as `select`.
        """
        return self.client.run(self._score(agent, choices))

    def fork(self, n: int) -> list[Session]:
        """`n` sessions that go on from here, each by itself. They share the prefix in the server's cache."""
        return [Session(self.client, self._ids) for _ in range(n)]


class AsyncSession(Trajectory):
    """As `Session`, for one task at a time in one event loop (but for `cancel`, which any thread may call)."""

    def __init__(self, server: str | AsyncClient, ids: Sequence[int] = ()) -> None:
        super().__init__(ids)
        self._own_client = isinstance(server, str)
        self.client = AsyncClient(server) if isinstance(server, str) else server

    @classmethod
    async def chat(cls, server: str | AsyncClient, messages: Sequence[Mapping[str, str]]) -> AsyncSession:
        """As `Session.chat`."""
        session = cls(server)
        ids = await session.client.call(protocol.tokenize_chat(messages))
        session.append_ids(ids)
        return session

    async def __aenter__(self) -> AsyncSession:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        if self._own_client:
            await self.client.aclose()

    async def append(self, text: str) -> None:
        """As `Session.append`."""
        await self.client.run(self._append(text))

    async def text(self) -> str:
        """As `Session.text`."""
        return await self.client.call(protocol.detokenize(self._ids))

    async def generate(self, agent: str | None, *, on_text: OnText | None = None, **arguments: Any) -> Turn:
        """As `Session.generate`. Cancelling the task aborts the request on the server."""
        async with aclosing(self.stream(agent, **arguments)) as pieces:
            async for piece in pieces:
                if on_text is not None:
                    on_text(piece)
        return self.turns[-1]

    async def stream(
        self,
        agent: str | None,
        *,
        max_tokens: int | None = None,
        stop: Stop | None = None,
        regex: str | None = None,
        json_schema: str | Mapping[str, Any] | None = None,
        sampling: Mapping[str, Any] | None = None,
        timeout: float | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> AsyncGenerator[str]:
        """As `Session.stream`. A loop that may be left early must close it, with contextlib.aclosing."""
        answer = self._ask(agent, max_tokens, stop, regex, json_schema, sampling, timeout, options)
        with self.cancelled_by(partial(answer.end, TurnCancelled)):
            async with aclosing(self.client.stream(answer)) as pieces:
                async for piece in pieces:
                    yield piece
        await self.client.run(self._take(answer))

    async def select(self, agent: str | None, choices: Sequence[str]) -> str:
        """As `Session.select`."""
        return await self.client.run(self._select(agent, choices))

    async def score(self, agent: str | None, choices: Sequence[str]) -> list[Turn]:
        """As `Session.score`."""
        return await self.client.run(self._score(agent, choices))

    def fork(self, n: int) -> list[AsyncSession]:
        """As `Session.fork`."""
        return [AsyncSession(self.client, self._ids) for _ in range(n)]


def mean_logprob(turn: Turn) -> float:
    """The mean log-probability of a scored turn's tokens."""
    logprobs = [entry[0] for entry in turn.meta_info["input_token_logprobs"]]
    return sum(logprobs) / len(logprobs)
