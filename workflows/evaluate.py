"""`descant eval hotpotqa`: many questions at once, each a graph of its own, each finished one a line of the results."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from langgraph.graph.state import CompiledStateGraph
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from descant.agents.standin import ROLES as STANDINS
from descant.runtime import protocol
from descant.runtime.checkpoint import demo_folder
from descant.runtime.client import Client
from descant.runtime.errors import DescantError
from descant.runtime.turn import RequestError
from descant.workflows.hotpotqa import Question, exact_match, f1, read_questions, write_passages
from descant.workflows.limits import run
from descant.workflows.ready import ROLES, Served, choose, described, ready, toolbox
from descant.workflows.report import summarise
from descant.workflows.results import Results
from descant.workflows.run import reach, untrained

KV_TOKENS = 32768  # of a server of our own: several trajectories, and what they share
DYING_S = 1.0  # a server whose worker has died still answers for a moment
THREADS = 4  # a question: its step, its tool, and room

Graphs = Callable[[Question], CompiledStateGraph[Any, Any, Any, Any]]


class ServerGoneError(DescantError):
    """The server went away; what was finished is in the results."""


@dataclass(frozen=True)
class Evaluation:
    """What is evaluated, and where.

    limit: how many of the file's questions, from the first on; None is all. concurrency: questions at once.
    output: folder of the results. adapters, steps, examples, server, model: as `descant.workflows.run.Setup`.
    """

    file: Path
    workflow: str
    limit: int | None
    concurrency: int
    output: Path
    adapters: Mapping[str, str]
    steps: int | None
    examples: bool | None
    server: str | None
    model: Path | None


def evaluate(evaluation: Evaluation, console: Console, note: Callable[[str], None]) -> dict[str, Any]:
    """Answer the questions that have no result yet, and sum up all of them; see `summarise`.

    If none is left, no server is started for it.

    Raises:
        DescantError: something does not fit, or the server failed.
    """
    if evaluation.workflow not in ROLES:
        raise DescantError(f"There is no workflow {evaluation.workflow!r}: name {', '.join(ROLES)}.")
    if evaluation.server is not None and evaluation.model is not None:
        raise DescantError("The server has its model already: give --model or --server, not both.")
    every = read_questions(evaluation.file)
    asked = every[: evaluation.limit]
    results = Results(evaluation.output)
    write_passages(every, results.passages)
    if evaluation.server is None:  # all that counts is known before one is started
        own = Served(tuple(STANDINS), context=0)
        settings = _settings(evaluation, every, own, str(evaluation.model or demo_folder()))
        results.begin(settings)
        if all(question.id in results.by_id for question in asked):
            note(f"All of the {len(asked)} questions are in {results.folder} already.")
            return _report(evaluation, settings, asked, results)
    tools = toolbox(results.passages, wikipedia=False)
    with reach(evaluation.server, evaluation.model, console, kv_tokens=KV_TOKENS) as (client, served):
        settings = _settings(evaluation, every, served, client.call(protocol.model_info())["model_path"])
        note(f"{described(settings['adapters'])}.")
        results.begin(settings)
        left = [question for question in asked if question.id not in results.by_id]
        if done := len(asked) - len(left):
            note(f"{done} of {len(asked)} questions are in {results.folder} already; going on from there.")

        def graph(question: Question) -> CompiledStateGraph[Any, Any, Any, Any]:
            return ready(
                evaluation.workflow,
                settings["adapters"],
                tools(),
                context=served.context,
                key=question.answer,
                steps=evaluation.steps,
                examples=settings["examples"],
            ).compile(client)

        columns = (TextColumn("{task.description}"), BarColumn(30), MofNCompleteColumn(), TimeElapsedColumn())
        with Progress(*columns, TextColumn("{task.fields[right]} right"), console=console) as progress:
            task = progress.add_task(evaluation.workflow, total=len(asked), completed=done, right=0)
            shown = _Shown(progress, task, [results.by_id[q.id] for q in asked if q.id in results.by_id])
            asyncio.run(_all(left, graph, client, results, evaluation.concurrency, shown))
    return _report(evaluation, settings, asked, results)


def _settings(evaluation: Evaluation, every: Sequence[Question], served: Served, model: str) -> dict[str, Any]:
    """What results depend on, so that they are not mixed with others'."""
    adapters = choose(evaluation.workflow, evaluation.adapters, served)
    return {
        "questions": [question.id for question in every],
        "workflow": evaluation.workflow,
        "model": model,
        "adapters": adapters,
        "steps": evaluation.steps,
        "examples": untrained(evaluation.server, adapters) if evaluation.examples is None else evaluation.examples,
    }


def _report(
    evaluation: Evaluation, settings: Mapping[str, Any], asked: Sequence[Question], results: Results
) -> dict[str, Any]:
    report = {
        "file": str(evaluation.file),
        **{key: value for key, value in settings.items() if key != "questions"},
        "concurrency": evaluation.concurrency,
        "results": str(results.file),
        **summarise([results.by_id[question.id] for question in asked]),
    }
    results.write_report(report)
    return report


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
    questions: Sequence[Question],
    graph: Graphs,
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
            record = await _answer(question, graph, client)
            results.add(record)
            shown(record)

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(concurrency):
                group.create_task(work())
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from None


async def _answer(question: Question, graph: Graphs, client: Client) -> dict[str, Any]:
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
