"""The commands `descant bench predict` and `descant bench calibrate`."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from descant.runtime.console import command, err, note
from descant.runtime.errors import DescantError
from descant.workflows.bench.files import new, writable, write_new, writing
from descant.workflows.bench.options import Choice, Csv, Seed, Shape, Turns, finite, listed, turns_of
from descant.workflows.bench.traces import AS_WRITTEN
from descant.workflows.bench.words import counted

if TYPE_CHECKING:
    from descant.workflows.bench.schedule import Workflow

AGENTS = (2, 4, 8, 16, 32)


def add_to(app: typer.Typer) -> None:
    """Register both."""
    app.command()(predict)
    app.command()(calibrate)


@command
def predict(
    devices: Annotated[str, typer.Option("--device", metavar="NAME,…", help="A100-80GB, H200.")] = "A100-80GB,H200",
    models: Annotated[
        str, typer.Option("--model", metavar="NAME,…", help="Llama-3.1-8B, Qwen3-14B, or paths of a config.json.")
    ] = "Llama-3.1-8B,Qwen3-14B",
    agents: Annotated[
        str | None,
        typer.Option(
            metavar="N,…", help="Numbers of agents; 2,4,8,16,32 by default, or what the CSV has.", show_default=False
        ),
    ] = None,
    rank: Annotated[int, typer.Option(min=1, help="Of the LoRA adapters; the ICaRus paper's is 128.")] = 128,
    shape: Shape = "react",
    csv: Csv = None,
    turns: Turns = None,
    choice: Choice = None,
    scale: Annotated[float, typer.Option(min=0, help="Times all token counts.", callback=finite)] = 1.0,
    workflows: Annotated[int, typer.Option(min=1, help="How many arrive.")] = 128,
    seed: Seed = 0,
    first_rate: Annotated[
        float, typer.Option(min=1e-6, max=1e6, help="Workflows/s, from where on the rate is doubled.", callback=finite)
    ] = 0.01,
    flops_share: Annotated[
        float, typer.Option(min=0.01, max=1, help="Of the peak arithmetic, assumed.", callback=finite)
    ] = 0.6,
    bandwidth_share: Annotated[
        float, typer.Option(min=0.01, max=1, help="Of the peak bandwidth, assumed.", callback=finite)
    ] = 0.8,
    overhead_ms: Annotated[
        float, typer.Option(min=0, max=1e6, help="Of a step beside its work, assumed.", callback=finite)
    ] = 2.0,
    output: Annotated[
        Path | None, typer.Option(help="A JSON file for all points of all curves.", show_default=False)
    ] = None,
    plots: Annotated[
        Path | None, typer.Option(help="A folder for plots of the curves; needs matplotlib.", show_default=False)
    ] = None,
) -> None:
    """Predict nonshared against icarus on GPUs that are not there; every figure is simulated, none measured."""
    from descant.workflows.bench.predict.machine import GPUS
    from descant.workflows.bench.predict.model import MODELS, model_at
    from descant.workflows.bench.predict.plots import check_matplotlib, plot
    from descant.workflows.bench.predict.study import Comparison, compare, table
    from descant.workflows.bench.traces import schedule

    trace, chosen = turns_of(csv, shape, turns, choice)
    numbers: tuple[int, ...] = (trace.agents,) if trace.agents and chosen == AS_WRITTEN else AGENTS
    if agents is not None:
        numbers = listed(agents, "--agents", int)
    named = listed(devices, "--device", str)
    if unknown := [name for name in named if name not in GPUS]:
        raise DescantError(f"No data of a device {', '.join(unknown)}: choose of {', '.join(GPUS)}.")
    words = listed(models, "--model", str)
    described = [MODELS[name] if name in MODELS else model_at(Path(name)) for name in words]
    if len({model.name for model in described}) < len(described):
        raise DescantError(
            f"--model {models} has two models of one name, which is their folder's: rename one's folder."
        )
    if workflows == 1:
        raise DescantError("A single workflow comes at no rate, so nothing saturates: give --workflows 2 or more.")
    for count in numbers:  # what is wrong with the load is wrong on every device
        schedule(trace, workflows=workflows, agents=count, choice=chosen, scale=scale, rate=1.0, seed=seed)
    if plots:
        check_matplotlib()
    if output:
        new(output)
    if plots:
        writable(plots)
    found: list[Comparison] = []
    for name in named:
        gpu = replace(GPUS[name], flops_share=flops_share, bandwidth_share=bandwidth_share, overhead=overhead_ms / 1000)
        for model in described:
            for count in numbers:

                def load(rate: float, count: int = count) -> list[Workflow]:
                    return schedule(
                        trace, workflows=workflows, agents=count, choice=chosen, scale=scale, rate=rate, seed=seed
                    )

                with err.status(f"{name}, {model.name}, {counted(count, 'agent')}"):
                    try:
                        found.append(compare(gpu, model, count, rank, load, first_rate))
                    except DescantError as error:
                        note(f"{name}, {model.name}, {counted(count, 'agent')}: {error}")
    if not found:
        raise typer.Exit(1)
    print(table(found))
    if output:
        write_new(output, json.dumps([one.as_json() for one in found], indent=1))
        note(f"Written: {output}")
    if plots:
        with writing(plots):
            note(f"Written: {', '.join(map(str, plot(found, plots)))}")


@command
def calibrate(
    file: Annotated[Path, typer.Argument(help="What descant bench agents wrote.", show_default=False)],
    chunk: Annotated[
        int, typer.Option(min=1, help="Tokens of a prefill step there at most: --chunked-prefill-size.")
    ] = 4096,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON list, an object a scheme.")] = False,
) -> None:
    """Fit the model of a machine to some cells of a benchmark, predict the others, and show how far off that is."""
    from descant.workflows.bench.predict.measured import calibrate as run
    from descant.workflows.bench.predict.measured import measured, misfit, render

    found = run(measured(file, chunk))
    if as_json:
        cells = [
            {
                "scheme": one.scheme,
                "constants": asdict(one.machine),
                "cells": [
                    {
                        "agents": judged.cell.agents,
                        "rate": judged.cell.rate,
                        "fitted": judged.fitted,
                        **asdict(judged.error),
                    }
                    for judged in one.cells
                ],
            }
            for one in found
        ]
        print(json.dumps(cells, indent=1))
        if poor := misfit(found):
            note(poor)
    else:
        print(render(found))
