"""Many questions at once, each a graph of its own, each finished one a line of the results."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol, TypeVar

from langgraph.graph.state import CompiledStateGraph
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from descant.runtime import protocol
from descant.runtime.client import Client
from descant.runtime.errors import DescantError
from descant.runtime.turn import RequestError
from descant.workflows.hotpotqa import exact_match, f1
from descant.workflows.limits import run
from descant.workflows.results import Results

DYING_S = 1.0  # a server whose worker has died still answers for a moment
THREADS = 4  # a question: its step, its tool, and room


class Asked(Protocol):
    """A question with its key."""

    @property
    def id(self) -> str: ...
    @property
    def question(self) -> str: ...
    @property
    def answer(self) -> str: ...


Q = TypeVar("Q", bound=Asked)
Compiled = CompiledStateGraph[Any, Any, Any, Any]


class ServerGoneError(DescantError):
    """The server went away; what was finished is in the results."""


def answer_all(
    asked: Sequence[Q],
    graph: Callable[[Q], Compiled],
    client: Client,
    results: Results,
    concurrency: int,
    console: Console,
    name: str,
) -> list[dict[str, Any]]:
    """Answer the questions that have no result yet, `concurrency` at once; the records of all, in order.

    Args:
        graph: what answers a question, compiled for `client`'s server.
        name: what the progress bar is called.

    Raises:
        ServerGoneError: the server went away.
    """
    before = [results.by_id[question.id] for question in asked if question.id in results.by_id]
    left = [question for question in asked if question.id not in results.by_id]
    columns = (TextColumn("{task.description}"), BarColumn(30), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, TextColumn("{task.fields[right]} right"), console=console) as progress:
        task = progress.add_task(name, total=len(asked), completed=len(before), right=0)
        shown = _Shown(progress, task, before)
        asyncio.run(_all(left, graph, client, results, concurrency, shown))
    return [results.by_id[question.id] for question in asked]


class _Shown:
    """The progress bar, and how many answers were right."""

    def __init__(self, progress: Progress, task: TaskID, before: Sequence[Mapping[str, Any]]) -> None:
        self._progress, self._task, self._right = progress, task, 0
        for record in before:
            self._count(record)

    def __call__(self, record: Mapping[str, Any]) -> None:
        self._count(record)
        self._progress.update(self._task, advance=1)

    def _count(self, record: Mapping[str, Any]) -> None:
        self._right += record["exact_match"]
        self._progress.update(self._task, right=self._right)


async def _all(
    questions: Sequence[Q],
    graph: Callable[[Q], Compiled],
    client: Client,
    results: Results,
    concurrency: int,
    shown: Callable[[Mapping[str, Any]], None],
) -> None:
    """Answer all questions, `concurrency` at once; a server that is gone ends them all."""
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(THREADS * concurrency))
    ahead = iter(questions)

    async def work() -> None:
        for question in ahead:
            record = await answer(question, graph, client)
            results.add(record)
            shown(record)

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(concurrency):
                group.create_task(work())
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from None


async def answer(question: Q, graph: Callable[[Q], Compiled], client: Client) -> dict[str, Any]:
    """What came of one question: a line of the results."""
    start = time.monotonic()
    state: Mapping[str, Any] = {}
    error = None
    try:
        async for values in graph(question).astream({"question": question.question}, stream_mode="values"):
            state = values
    except Exception as failure:
        if isinstance(failure, RequestError):
            await _still_there(client)
        error = f"{type(failure).__name__}: {failure}"
    answer = state.get("answer") if error is None else None
    steps = run(state) if state else []
    return {
        "id": question.id,
        "question": question.question,
        "key": question.answer,
        "answer": answer,
        "exact_match": answer is not None and exact_match(answer, question.answer),
        "f1": f1(answer, question.answer) if answer is not None else 0.0,
        "ended": state.get("ended") if error is None else "error",
        "error": error,
        "rounds": sum(step["node"] == "act" for step in steps),
        "seconds": round(time.monotonic() - start, 3),
        "turns": [turn for step in steps for turn in step["turns"]],
        "observations": state.get("observations", []),
    }


async def _still_there(client: Client) -> None:
    """Raise ServerGoneError if the server does not answer."""
    await asyncio.sleep(DYING_S)
    try:
        await asyncio.to_thread(client.call, protocol.model_info())
    except RequestError as error:
        raise ServerGoneError(
            f"The server at {client.url} is gone, and the eval with it: give the command again, with a server that "
            "runs, to go on from what was finished."
        ) from error
