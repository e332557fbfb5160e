"""A session's trajectory, token for token: what is cached, what a stop leaves, and what an early end does to it."""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import aclosing, closing
from typing import Any

import pytest
import tiny
import torch
from deployments import on
from engine import Server, aborting, idle, together
from graphs import FOREVER
from reference import Reference

from descant.runtime.protocol import detokenize, detokenize_each
from descant.runtime.session import (
    AsyncSession,
    InterruptedTurn,
    RequestError,
    Session,
    Turn,
    TurnCancelled,
    TurnTimeout,
)

LONG = {"ignore_eos": True, "temperature": 0}
EOS_ID = 1
WORDS = r"[A-Za-z ,.]+"
PROMPT = "Question: which city is larger, Porto or Lisbon?"


@pytest.fixture
def session(server: Server) -> Iterator[Session]:
    with Session(server.url) as session:
        session.append(PROMPT)
        yield session


class Books:
    """What the server's cache has to hold, and who wrote it: every token but the last of each request."""

    def __init__(self) -> None:
        self._written: dict[tuple[int, ...], str | None] = {}

    def check(self, turn: Turn) -> int:
        """Hold a turn's counts against all before it, then enter it; return how many tokens it had to compute."""
        prompt = tuple(turn.prompt_ids)
        cached = next(n for n in range(len(prompt) - 1, -1, -1) if n == 0 or prompt[:n] in self._written)
        others = sum(self._written[prompt[:n]] != turn.agent for n in range(1, cached + 1))
        assert (turn.prompt_tokens, turn.cached_tokens, turn.cross_agent) == (len(prompt), cached, others)
        processed = (*prompt, *turn.output_ids)[:-1] if turn.output_ids else prompt
        for n in range(1, len(processed) + 1):
            self._written.setdefault(processed[:n], turn.agent)
        return turn.prefilled


@on("llama")
def test_each_agent_finds_all_that_any_has_processed(server: Server, session: Session) -> None:
    """20 turns of three agents, some ended by a stop string: what is not cached is what was added, and one token."""
    books = Books()
    agents = tiny.AGENTS
    for number in range(20):
        before = len(session)
        session.append(f"\nStep {number}: ")
        added = len(session) - before
        how: dict[str, Any] = {"stop": "e", "regex": WORDS} if number % 4 == 2 else {"sampling": {"ignore_eos": True}}
        turn = session.generate(agents[number % 3], max_tokens=12, **how)
        computed = books.check(turn)
        if number and session.turns[-2].matched != "e":  # else what a cut token left is new as well
            assert computed <= added + 1
    assert sum(turn.cross_agent for turn in session.turns) > 0
    assert {turn.matched for turn in session.turns} >= {None, "e"}
    # Ids that came back, which the same text would not give again.
    assert session.client.tokenize(session.text()) != list(session.ids)

    forks = session.fork(3)
    for fork in forks:
        fork.append("\nFork: ")
    together(
        [
            lambda fork=fork, agent=agent: fork.generate(agent, max_tokens=4, sampling=LONG)
            for fork, agent in zip(forks, agents, strict=True)
        ]
    )
    for fork, agent in zip(forks, agents, strict=True):
        assert fork.turns[0].cached_tokens >= len(session) - 1
        assert fork.ids[: len(session)] == session.ids
        fork.append("And: ")
        assert fork.generate(agent, max_tokens=4, sampling=LONG).prefilled == len(fork.client.tokenize("And: ")) + 1
    assert len(session.turns) == 20


@on("llama")
def test_a_stop_string_leaves_the_text_that_was_returned(session: Session) -> None:
    """Wherever it cuts: between ids, inside one, over several, or all within one."""
    base = session.ids
    free = session.fork(1)[0].generate("plan", max_tokens=16, regex=WORDS, sampling=LONG)
    pieces = session.client.call(detokenize_each([[one] for one in free.output_ids]))
    assert "".join(pieces) == free.text
    inside = within = 0
    for n, piece in enumerate(pieces):
        at = len("".join(pieces[:n]))
        for start in range(at, at + len(piece)):
            for length in (1, 4):
                stop = free.text[start : start + length]
                if len(stop) < length or free.text.find(stop) != start:
                    continue
                inside += start > at
                within += at < start and start + length < at + len(piece)
                fork = session.fork(1)[0]
                streamed: list[str] = []
                turn = fork.generate(
                    "plan", max_tokens=16, stop=[stop, "~"], regex=WORDS, sampling=LONG, on_text=streamed.append
                )
                assert turn.matched == stop
                assert "".join(streamed) == turn.text == free.text[:start]
                said = fork.ids[len(base) :]
                assert fork.client.call(detokenize(said)) == turn.text
                assert list(said[:n]) == free.output_ids[:n]
                assert list(said[n:]) == (fork.client.tokenize(piece[: start - at]) if start > at else [])
    assert inside > 3
    assert within


@on("llama")
def test_the_id_that_ends_a_sequence_stays_out(session: Session) -> None:
    before = session.ids
    turn = session.generate("act", regex="(yes|no)", sampling={"temperature": 0})
    assert turn.text in ("yes", "no")
    assert turn.stop_id == EOS_ID == turn.output_ids[-1]
    assert session.ids == (*before, *turn.output_ids[:-1])


@on("llama")
def test_an_answer_can_be_bound_to_a_schema(session: Session) -> None:
    schema = {"type": "object", "properties": {"found": {"type": "boolean"}}, "required": ["found"]}
    turn = session.generate("act", json_schema=schema, sampling={"temperature": 0})
    assert turn.text.replace(" ", "") in ('{"found":true}', '{"found":false}')


@on("roomy")
def test_pieces_are_the_text_and_closing_early_aborts(server: Server, session: Session) -> None:
    assert "".join(session.stream("plan", max_tokens=30, sampling=LONG)) == session.turns[0].text
    assert len(session.turns[0].output_ids) == 30
    before = session.ids
    with aborting(server), closing(session.stream("plan", max_tokens=FOREVER, sampling=LONG)) as pieces:
        next(pieces)
    assert session.ids == before
    assert len(session.turns) == 1


@on("roomy")
def test_a_turn_has_to_be_over_in_time(server: Server, session: Session) -> None:
    before = session.ids
    start = time.monotonic()
    with aborting(server), pytest.raises(TurnTimeout, match=r"not over after 1 s: \d+ tokens had come\.$") as error:
        session.generate("plan", max_tokens=FOREVER, sampling=LONG, timeout=1)
    assert 1 <= time.monotonic() - start < 3
    partial = error.value.partial
    assert 0 < len(partial.output_ids) < FOREVER
    assert partial.text
    assert session.ids == before == tuple(partial.prompt_ids)
    # What had come is what would have come.
    again = session.generate("plan", max_tokens=len(partial.output_ids), sampling=LONG, timeout=60)
    assert again.output_ids == partial.output_ids


@on("roomy")
def test_another_thread_can_cancel(server: Server, session: Session) -> None:
    begun = threading.Event()
    was_idle: list[bool] = []

    def cancel() -> None:
        begun.wait()
        was_idle.append(idle(server))
        session.cancel()

    thread = threading.Thread(target=cancel)
    thread.start()
    before = session.ids
    with aborting(server), pytest.raises(TurnCancelled) as error:
        session.generate("plan", max_tokens=FOREVER, sampling=LONG, on_text=lambda _: begun.set())
    thread.join()
    assert was_idle == [False]
    assert error.value.partial.output_ids
    assert session.ids == before
    session.cancel()  # nothing runs: nothing happens
    assert session.generate("plan", max_tokens=4, sampling=LONG).output_ids


@on("roomy")
def test_ctrl_c_aborts_and_goes_on_as_ctrl_c(server: Server, session: Session) -> None:
    before = session.ids
    with aborting(server), pytest.raises(KeyboardInterrupt):
        session.generate(
            "plan", max_tokens=FOREVER, sampling=LONG, on_text=lambda _: signal.raise_signal(signal.SIGINT)
        )
    assert session.ids == before


@on("llama")
def test_the_async_session_is_the_same(server: Server, session: Session) -> None:
    session.append("\nPlan:")
    expected = [
        session.generate("plan", max_tokens=20, regex=WORDS, stop="e", sampling=LONG),
        session.generate("act", max_tokens=5, sampling=LONG),
    ]
    choice = session.select("reflect", [" Porto", " Lisbon"])
    server.flush()

    async def run() -> tuple[AsyncSession, str]:
        async with AsyncSession(server.url) as other:
            await other.append(PROMPT)
            await other.append("\nPlan:")
            pieces = []
            async for piece in other.stream("plan", max_tokens=20, regex=WORDS, stop="e", sampling=LONG):
                pieces.append(piece)
            assert "".join(pieces) == other.turns[0].text
            streamed: list[str] = []
            turn = await other.generate("act", max_tokens=5, sampling=LONG, on_text=streamed.append)
            assert "".join(streamed) == turn.text
            assert await other.select("reflect", [" Porto", " Lisbon"]) == choice
            (fork,) = other.fork(1)
            assert fork.ids == other.ids
            with pytest.raises(RequestError, match="nobody"):
                await fork.generate("nobody", max_tokens=2)
            return other, await other.text()

    other, text = asyncio.run(run())
    assert other.ids == session.ids
    assert text == session.text()
    for ours, theirs in zip([*expected, session.turns[2]], other.turns, strict=True):
        assert (ours.text, ours.output_ids, ours.prompt_tokens) == (
            theirs.text,
            theirs.output_ids,
            theirs.prompt_tokens,
        )


@on("roomy")
def test_async_turns_end_early_in_the_same_ways(server: Server) -> None:
    async def run() -> None:
        async with AsyncSession(server.url) as session:
            await session.append(PROMPT)
            before = session.ids
            with aborting(server), pytest.raises(TurnTimeout) as timeout:
                await session.generate("plan", max_tokens=FOREVER, sampling=LONG, timeout=1)
            assert timeout.value.partial.output_ids

            begun = asyncio.Event()
            long = {"max_tokens": FOREVER, "sampling": LONG, "on_text": lambda _: begun.set()}
            task = asyncio.create_task(session.generate("plan", **long))
            await begun.wait()
            with aborting(server), pytest.raises(TurnCancelled) as cancelled:
                await asyncio.gather(asyncio.to_thread(session.cancel), task)
            assert cancelled.value.partial.output_ids

            begun.clear()
            task = asyncio.create_task(session.generate("plan", **long))
            await begun.wait()
            task.cancel()
            with aborting(server), pytest.raises(asyncio.CancelledError):
                await task

            with aborting(server):
                async with aclosing(session.stream("plan", max_tokens=FOREVER, sampling=LONG)) as pieces:
                    await anext(pieces)
            assert session.ids == before
            assert not session.turns

    asyncio.run(run())


@on("llama")
@pytest.mark.parametrize("agent", ["plan", None])
def test_select_takes_the_likeliest_by_mean_logprob(session: Session, ours: Reference, agent: str | None) -> None:
    choices = [" Lisbon", " Porto", " the answer is 517802", " no", "?"]
    each = [session.client.tokenize(choice) for choice in choices]
    assert len({len(ids) for ids in each}) > 2
    means = []
    for ids in each:
        logprobs = ours.icarus([*session.ids, *ids], agent)[len(session) - 1 : -1]
        means.append(float(logprobs.gather(1, torch.tensor(ids)[:, None]).mean()))
    best = max(range(len(choices)), key=means.__getitem__)
    before = session.ids
    scored = session.score(agent, choices)
    for turn, ids, mean in zip(scored, each, means, strict=True):
        entries = turn.meta_info["input_token_logprobs"]
        assert [entry[1] for entry in entries] == ids == turn.output_ids
        assert sum(entry[0] for entry in entries) / len(entries) == pytest.approx(mean, abs=1e-3)
    assert session.ids == before
    assert session.select(agent, choices) == choices[best]
    assert session.ids == (*before, *each[best])
    assert session.turns[-1].text == choices[best]
    assert session.turns[-1].cached_tokens == len(before) - 1
    # What was scored is in the cache: but for the newest token, nothing is computed again.
    assert session.generate("act", max_tokens=1).prefilled == 1


@on("llama")
@pytest.mark.parametrize(
    ("ask", "words"),
    [
        (lambda s: s.generate("nobody"), "nobody"),
        (lambda s: s.select("nobody", ["a", "b"]), "nobody"),
        (lambda s: s.fork(1)[0].select("plan", []), "nothing to choose from"),
        (lambda s: s.select("plan", ["a", ""]), "nothing to choose from"),
        (lambda s: Session(s.client, [5] * 2000).generate("plan"), "long"),
        (lambda s: Session(s.client).generate("plan"), "empty"),
        (lambda s: s.generate("plan", regex="(", max_tokens=4), "regex|grammar"),
    ],
)
def test_a_refusal_is_a_sentence_and_changes_nothing(
    session: Session, ask: Callable[[Session], Any], words: str
) -> None:
    before = session.ids
    with pytest.raises(RequestError, match=words) as error:
        ask(session)
    assert "\n" not in str(error.value)
    assert session.ids == before
    assert not session.turns


def test_the_error_of_an_early_end_is_one_of_ours() -> None:
    assert issubclass(TurnTimeout, InterruptedTurn)
    assert issubclass(InterruptedTurn, RequestError)
