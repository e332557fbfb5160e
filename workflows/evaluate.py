"""`descant eval hotpotqa`: many questions at once, each a graph of its own, each finished one a line of the results."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from langgraph.graph.state import CompiledStateGraph
from rich.console import Console

from descant.agents.standin import ROLES as STANDINS
from descant.runtime import protocol
from descant.runtime.checkpoint import demo_folder
from descant.runtime.errors import DescantError
from descant.workflows.answering import answer_all
from descant.workflows.hotpotqa import Question, read_questions, write_passages
from descant.workflows.ready import ROLES, Served, choose, described, ready, toolbox
from descant.workflows.report import summarise
from descant.workflows.results import Results
from descant.workflows.run import reach, untrained

KV_TOKENS = 32768  # of a server of our own: several trajectories, and what they share


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
        if done := sum(question.id in results.by_id for question in asked):
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

        answer_all(asked, graph, client, results, evaluation.concurrency, console, evaluation.workflow)
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
