"""The command `descant`."""

from __future__ import annotations

import json
import os
import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from descant._version import __version__
from descant.runtime import cli_bench, cli_graphs, cli_train, cli_ui
from descant.runtime.console import command, err, out
from descant.runtime.errors import DescantError
from descant.runtime.extras import require
from descant.runtime.serve import DEMO, HELP, added_options, serve_arguments
from descant.runtime.sglang_command import SGLANG_SERVE

app = typer.Typer(
    help="Many LoRA agents on one shared KV cache, on SGLang.", no_args_is_help=True, add_completion=False
)
adapters_app = typer.Typer(help="Look into LoRA adapters before they are served.", no_args_is_help=True)
app.add_typer(adapters_app, name="adapters")
eval_app = typer.Typer(help="Measure a workflow on a data set.", no_args_is_help=True)
app.add_typer(eval_app, name="eval")
app.add_typer(cli_bench.bench_app, name="bench")

app.command(cls=cli_graphs.Command)(cli_graphs.run)
app.command()(cli_train.train)
app.command(cls=cli_graphs.Command)(cli_ui.ui)
eval_app.command(cls=cli_graphs.Command)(cli_graphs.hotpotqa)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"descant {__version__}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None: ...


@app.command(
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []},
    options_metavar="",
    epilog="All options are those of sglang serve: see descant serve --help.",
)
@command
def serve(context: typer.Context) -> None:
    """Serve a model: sglang serve, with agents on one KV cache. --demo: the demo's model and its trained adapters."""
    require("sglang", "torch")
    arguments = list(context.args)
    if DEMO in arguments:
        from descant.workflows.demo_server import demo_arguments

        arguments = demo_arguments(arguments, err)
    line = serve_arguments(arguments)
    added = shlex.join(added_options([] if any(word in HELP for word in arguments) else arguments))
    if added:
        err.print(f"descant serve adds, where you do not say otherwise: {added}", highlight=False, soft_wrap=True)
    os.execv(SGLANG_SERVE[0], [*SGLANG_SERVE, *line])


@app.command()
@command
def doctor(as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False) -> None:
    """Show versions, the accelerator, the backends in use, and whether every hook took; status 1 if not."""
    from descant.runtime.doctor import render, report

    require("sglang", "torch")
    if as_json:
        found = report()
        print(json.dumps(found, indent=1))
    else:
        with err.status("Looking at SGLang"):
            found = report()
        out.print(render(found), highlight=False)
    if found["problems"]:
        raise typer.Exit(1)


@adapters_app.command()
@command
def check(
    paths: Annotated[list[Path], typer.Argument(metavar="PATH…", help="Folders of PEFT adapters.", show_default=False)],
    scheme: Annotated[str, typer.Option(help="The --kv-sharing scheme that shall serve them.")] = "icarus",
    model: Annotated[
        Path | None, typer.Option(help="The base model's folder: is it the one that they were trained on?", exists=True)
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Show what adapters update, and whether a scheme can serve them; status 1 if one cannot be served."""
    from descant.agents.adapter_table import judge, render

    verdicts = judge(paths, scheme, model)
    if as_json:
        print(json.dumps({"scheme": scheme, "adapters": [verdict.as_json() for verdict in verdicts]}, indent=1))
    else:
        out.print(render(verdicts, scheme), highlight=False)
    if any(verdict.reason for verdict in verdicts):
        raise typer.Exit(1)


@app.command()
@command
def demo(
    model: Annotated[
        Path | None,
        typer.Option(
            help="A checkpoint of your own with a chat template, in place of SmolLM2-135M-Instruct.", exists=True
        ),
    ] = None,
    question: Annotated[str | None, typer.Option(help="What to ask.", show_default=False)] = None,
    rounds: Annotated[
        int | None, typer.Option(help="Thoughts and actions at most; with stand-ins the last is the answer.", min=1)
    ] = None,
    questions: Annotated[
        bool, typer.Option("--questions", help="Ask twenty held-out questions, and show which answers are right.")
    ] = False,
    replay: Annotated[bool, typer.Option(help="Replay the trajectory under nonshared, to compare.")] = True,
) -> None:
    """Watch three agents answer a question on one KV cache, and see what sharing it saves."""
    from descant.workflows.demo import QUESTION, run, run_questions

    if not questions:
        run(out, model, question or QUESTION, rounds, replay)
    elif question is None:
        run_questions(out, model, rounds)
    else:
        raise DescantError("The twenty questions are fixed: give --questions or --question, not both.")


if __name__ == "__main__":
    sys.exit(app())
