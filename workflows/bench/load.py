"""The open-loop load: each workflow starts when it is due, whatever has become of the others.

A closed loop, which waits for an answer before it sends the next request, would slow down with the server that it
measures and hide the queue in front of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass

from descant.runtime.client import AsyncClient
from descant.runtime.errors import DescantError
from descant.runtime.protocol import Answer
from descant.workflows.bench.row import Row
from descant.workflows.bench.schedule import Turn, Workflow
from descant.workflows.bench.vocabulary import Vocabulary


@dataclass(frozen=True)
class Reply:
    """What came of one request.

    ttft: seconds from sending it to its first token. queued: of these, those in which it waited for the scheduler; None
    if the server has no --enable-metrics.
    """

    output_ids: Sequence[int]
    ttft: float
    prompt_tokens: int
    cached: int
    cross_agent: int
    queued: float | None = None


Sender = Callable[[int, Sequence[int], int], Awaitable[Reply]]  # agent, prompt, tokens to generate


async def run_load(
    schedule: Sequence[Workflow],
    send: Sender,
    vocabulary: Vocabulary,
    seed: int,
    on_end: Callable[[], None] = lambda: None,
) -> list[Row]:
    """Offer the schedule to `send`, by the running loop's clock; one row a turn, in the order in which they ended.

    A turn's prompt is the one before it, the ids that came back for it, and new ids that depend on seed, workflow and
    turn alone, so that the KV of generated tokens can be read again as that of given ones.

    Args:
        on_end: called as each workflow ends.

    Raises:
        DescantError: a request failed, or an answer is not what was asked for; the rest of the load is given up.
    """
    loop = asyncio.get_running_loop()
    begin = loop.time()
    rows: list[Row] = []

    async def run(workflow: Workflow) -> None:
        await asyncio.sleep(begin + workflow.arrival - loop.time())
        due, ids = workflow.arrival, list[int]()
        for number, turn in enumerate(workflow.turns):
            ids += vocabulary.draw(turn.prefill, f"{seed} {workflow.number} {number}")
            sent = max(due, loop.time() - begin)  # asyncio may wake a clock tick early
            reply = await send(turn.agent, ids, turn.decode)
            end = loop.time() - begin
            _check(workflow, number, turn, ids, reply)
            counts = (reply.prompt_tokens, reply.cached, reply.cross_agent, len(reply.output_ids), reply.queued)
            rows.append(Row(workflow.number, number, turn.agent, due, sent, sent + reply.ttft, end, *counts))
            due, ids = end, [*ids, *reply.output_ids]
        on_end()

    try:
        async with asyncio.TaskGroup() as tasks:
            for workflow in schedule:
                tasks.create_task(run(workflow))
    except* DescantError as errors:
        raise errors.exceptions[0] from None
    return rows


def _check(workflow: Workflow, number: int, turn: Turn, ids: Sequence[int], reply: Reply) -> None:
    got = (reply.prompt_tokens, len(reply.output_ids))
    if got != (len(ids), turn.decode):
        raise DescantError(
            f"Turn {number} of workflow {workflow.number} had {len(ids)} tokens and asked for {turn.decode}, but the "
            f"server says {got[0]} and sent {got[1]}: this is no measurement."
        )


def sender(client: AsyncClient, adapters: Sequence[str]) -> Sender:
    """Greedy requests to a server, each of exactly the tokens asked for; agent k has the adapter `adapters[k]`."""

    async def send(agent: int, ids: Sequence[int], decode: int) -> Reply:
        sampling = {"temperature": 0, "max_new_tokens": decode, "ignore_eos": True}
        answer = Answer(ids, adapters[agent], sampling)
        async with aclosing(client.stream(answer)) as pieces:
            async for _ in pieces:
                pass
        turn = answer.turn()
        counts = (turn.prompt_tokens, turn.cached_tokens, turn.cross_agent, turn.meta_info.get("queue_time"))
        return Reply(turn.output_ids, turn.ttft, *counts)

    return send
