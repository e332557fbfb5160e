"""The commands that run graphs: `descant run`, `descant eval`."""

from __future__ import annotations

import json
import re
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from descant.runtime.console import command, err, note, out
from descant.runtime.errors import DescantError

ADAPTERS = "--adapters"
PAIR = re.compile(r"\w+=\S*")


class Command(TyperCommand):
    """A command whose --adapters takes several words, as --lora-paths does."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, spread(args))


def spread(words: Sequence[str]) -> list[str]:
    """`words` with --adapters in front of each ROLE=NAME that follows one."""
    found: list[str] = []
    pairs = False
    for word in words:
        if pairs and PAIR.fullmatch(word) and found[-1] != ADAPTERS:
            found.append(ADAPTERS)
        pairs = word == ADAPTERS or (pairs and PAIR.fullmatch(word) is not None)
        found.append(word)
    return found


def named(pairs: Sequence[str]) -> dict[str, str]:
    """Adapters by role."""
    for pair in pairs:
        if not PAIR.fullmatch(pair):
            raise DescantError(f"{ADAPTERS} {pair} names no adapter: write ROLE=NAME.")
    return dict(pair.split("=", 1) for pair in pairs)


Adapters = Annotated[
    list[str] | None,
    typer.Option(
        ADAPTERS,
        metavar="ROLE=NAME…",
        help="The adapter of each role (plan, act, reflect); by default the one of that name, else the base model.",
    ),
]
ServerUrl = Annotated[
    str | None, typer.Option("--server", metavar="URL", help="A running server; without it one is started.")
]
Model = Annotated[
    Path | None, typer.Option(exists=True, help="A checkpoint for that one, in place of the demo's SmolLM2-135M.")
]
Steps = Annotated[int | None, typer.Option(min=1, help="Rounds of thought and action at most.")]
Examples = Annotated[
    bool | None,
    typer.Option(help="Show finished transcripts first; by default where a role may have no trained adapter."),
]


@command
def run(
    workflow: Annotated[
        str | None, typer.Argument(help="react, reflexion, plan-act-reflect or FILE.py:NAME.", show_default=False)
    ] = None,
    question: Annotated[str | None, typer.Argument(show_default=False)] = None,
    passages: Annotated[
        Path | None, typer.Option(help="JSONL with title and text, for the tools Search and Lookup.")
    ] = None,
    wikipedia: Annotated[bool, typer.Option("--wikipedia", help="Search and Lookup read Wikipedia.")] = False,
    key: Annotated[str | None, typer.Option(help="The right answer, by which reflexion judges each trial.")] = None,
    adapters: Adapters = None,
    steps: Steps = None,
    examples: Examples = None,
    server: ServerUrl = None,
    model: Model = None,
    thread: Annotated[str | None, typer.Option(metavar="ID", help="What to call the run.")] = None,
    resume: Annotated[str | None, typer.Option(metavar="ID", help="Go on with a run that was cut off.")] = None,
    answer: Annotated[
        str | None, typer.Option(metavar="TEXT", help="With --resume, to what the graph asks: JSON, or else a text.")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one event a line; the last is the result, or a question.")
    ] = False,
) -> None:
    """Run a graph of agents and watch it: who says what, the answer, and what was reused."""
    from descant.workflows.run import RUN, Setup, begin
    from descant.workflows.run import resume as go_on
    from descant.workflows.transcript import Transcript
    from descant.workflows.transcript import as_json as print_json

    transcript = Transcript(out)
    begun: list[str] = []

    def show(event: Any) -> None:
        if event["event"] == RUN:
            begun.append(event["thread"])
        print_json(event) if as_json else transcript.show(event)

    try:
        if resume is not None:
            if any((workflow, passages, wikipedia, key, adapters, steps, examples is not None, model, thread)):
                raise DescantError(
                    "A run goes on as it was begun: give --resume with --server, --answer, --json alone."
                )
            go_on(resume, server, answer, err, show, note)
        elif answer is not None:
            raise DescantError("An answer is to a run that asks: give --answer with --resume ID.")
        elif workflow is None or question is None:
            raise DescantError('Say what to run and what to ask: descant run react "…"; descant run --help has more.')
        else:
            setup = Setup(
                workflow=_absolute(workflow),
                question=question,
                server=server,
                model=str(model.resolve()) if model else None,
                adapters=named(adapters) if adapters else None,
                passages=str(passages.resolve()) if passages else None,
                wikipedia=wikipedia,
                key=key,
                steps=steps,
                examples=examples,
            )
            begin(setup, thread, err, show, note)
    except BaseException as error:
        transcript.end()
        if not begun:
            raise
        theirs = isinstance(error, Exception) and not isinstance(error, DescantError)
        if theirs:  # the user's own code: it is they who need the traceback, and the way on below it
            traceback.print_exc()
        note(f"To go on: descant run --resume {begun[0]}")
        if theirs:
            raise typer.Exit(1) from error
        raise


def _absolute(workflow: str) -> str:
    """A run may be resumed in another folder."""
    file, colon, name = workflow.rpartition(":")
    return f"{Path(file).resolve()}:{name}" if colon else workflow


@command
def hotpotqa(
    file: Annotated[Path, typer.Argument(help="Questions, one JSON object a line.", show_default=False)],
    workflow: Annotated[str, typer.Option(help="react, reflexion or plan-act-reflect.")] = "react",
    limit: Annotated[int | None, typer.Option(min=1, help="How many questions, from the first on.")] = None,
    concurrency: Annotated[int, typer.Option(min=1, help="Questions at once.")] = 4,
    output: Annotated[
        Path | None, typer.Option(help="Folder of the results; hotpotqa-WORKFLOW by default.", show_default=False)
    ] = None,
    adapters: Adapters = None,
    steps: Steps = None,
    examples: Examples = None,
    server: ServerUrl = None,
    model: Model = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as one JSON object.")] = False,
) -> None:
    """Answer HotpotQA's questions and report exact match, F1, and what was reused; an eval that was cut off goes on."""
    from descant.workflows.evaluate import Evaluation, evaluate
    from descant.workflows.report import render

    evaluation = Evaluation(
        file=file,
        workflow=workflow,
        limit=limit,
        concurrency=concurrency,
        output=output or Path(f"hotpotqa-{workflow}"),
        adapters=named(adapters or ()),
        steps=steps,
        examples=examples,
        server=server,
        model=model,
    )
    report = evaluate(evaluation, err, note)
    if as_json:
        print(json.dumps(report, indent=1))
    else:
        out.print(render(report), highlight=False)
