"""The commands that measure: `descant bench`."""

from __future__ import annotations

import hashlib
import shlex
import sys
from collections.abc import Callable
from dataclasses import asdict, replace
from datetime import datetime
from pathlib import Path
from typing import Annotated, TypeVar

import typer

from descant.runtime.console import command, err, note, out
from descant.runtime.errors import DescantError
from descant.workflows.bench.files import new, writing
from descant.workflows.bench.options import Choice, Csv, Seed, Shape, Turns, finite, listed, turns_of
from descant.workflows.bench.predict.command import add_to as add_predictions
from descant.workflows.bench.words import counted

T = TypeVar("T")

SLOWEST = 0.0001  # workflows a second: hours lie between two

bench_app = typer.Typer(help="Measure agents on one KV cache against agents with one each.", no_args_is_help=True)
add_predictions(bench_app)

Scale = Annotated[
    float | None,
    typer.Option(min=0, help="Times all token counts; 1/16 by default.", show_default=False, callback=finite),
]
Workflows = Annotated[int | None, typer.Option(min=1, help="Workflows of a cell.", show_default=False)]
Model = Annotated[
    Path | None, typer.Option(exists=True, help="A checkpoint, in place of the demo's SmolLM2-135M-Instruct.")
]


@bench_app.command()
@command
def agents(
    output: Annotated[Path, typer.Option(help="The file of results; cells that it has are not run again.")] = Path(
        "bench-agents.jsonl"
    ),
    preset: Annotated[
        str, typer.Option(help="small: 2 agents, two rates, minutes. full: 2, 4 and 8, to saturation, 70 minutes.")
    ] = "small",
    schemes: Annotated[
        str | None, typer.Option(metavar="NAME,…", help="nonshared,icarus by default; fullshared runs, too.")
    ] = None,
    agents: Annotated[str | None, typer.Option(metavar="N,…", help="Numbers of agents.")] = None,
    shape: Shape = "react",
    csv: Csv = None,
    turns: Turns = None,
    choice: Choice = None,
    scale: Scale = None,
    workflows: Workflows = None,
    rates: Annotated[
        str | None, typer.Option(metavar="R,…", help="Workflows that arrive a second; or search, for saturation.")
    ] = None,
    start: Annotated[
        float | None,
        typer.Option(
            min=SLOWEST,
            callback=finite,
            help="Where the search begins. It doubles the rate until that brings less than 10 % more throughput, for "
            "each scheme by itself, and measures each scheme where the others peak.",
            show_default=False,
        ),
    ] = None,
    fill: Annotated[bool, typer.Option("--fill", help="Also a rate on either side of each scheme's peak.")] = False,
    repeats: Annotated[int | None, typer.Option(min=1, help="Of every cell.", show_default=False)] = None,
    seed: Seed = 0,
    pool_workflows: Annotated[
        float | None,
        typer.Option(
            min=1.5,
            max=1e6,
            callback=finite,
            help="The KV pool, in whole trajectories, the same for every scheme; 4 by default.",
            show_default=False,
        ),
    ] = None,
    max_running: Annotated[
        int | None, typer.Option(min=1, help="Requests a server runs at once; 16 by default.", show_default=False)
    ] = None,
    model: Model = None,
    lora_paths: Annotated[
        str | None, typer.Option(metavar="NAME=PATH,…", help="Adapters for every scheme, in place of stand-ins.")
    ] = None,
    url: Annotated[
        str | None, typer.Option(metavar="URL", help="Load a running server, emptying its cache before each cell.")
    ] = None,
    adapters: Annotated[str | None, typer.Option(metavar="NAME,…", help="The adapters of that one.")] = None,
) -> None:
    """Offer workflows of many agents to servers, scheme after scheme, and keep what each turn took."""
    from descant.runtime.checkpoint import demo_checkpoint
    from descant.workflows.bench.cells import Book
    from descant.workflows.bench.presets import DEFAULTS, PRESETS, SCHEMES
    from descant.workflows.bench.recipe import Recipe, machine, versions
    from descant.workflows.bench.sweep import left, others_server, own_servers, sweep
    from descant.workflows.bench.vocabulary import vocabulary_of

    if preset not in PRESETS:
        raise DescantError(f"There is no preset {preset!r}: name {' or '.join(PRESETS)}.")
    trace, chosen = turns_of(csv, shape, turns, choice)
    given = {
        "schemes": _list(schemes, "--schemes", str),
        "agents": _list(agents, "--agents", int),
        "workflows": workflows,
        "rates": _rates(rates),
        "start": start,
        "fill": fill,
        "repeats": repeats,
        "scale": scale,
        "seed": seed,
        "pool_workflows": pool_workflows,
        "max_running": max_running,
    }
    if start is not None and rates is None:
        given["rates"] = ()
    wanted = {**DEFAULTS, **PRESETS[preset], **{name: value for name, value in given.items() if value is not None}}
    wanted |= {"trace": trace, "choice": chosen}
    if agents is None and trace.agents is not None and chosen == "as-written":
        wanted["agents"] = (trace.agents,)
    if unknown := [name for name in wanted["schemes"] if name not in SCHEMES]:
        raise DescantError(f"There is no scheme {', '.join(unknown)}: name {', '.join(SCHEMES)}.")
    paths = _paths(lora_paths)
    if paths and len(paths) < max(wanted["agents"]):
        raise DescantError(
            f"--lora-paths names {counted(len(paths), 'adapter')} for {counted(max(wanted['agents']), 'agent')}: name "
            "as many."
        )
    if url is None:
        if adapters is not None:
            raise DescantError("--adapters names those of a running server: give its --url, too, or --lora-paths.")
        recipe = Recipe(**wanted)
        recipe.check()
        checkpoint = model or demo_checkpoint(err)
        deploy = own_servers(checkpoint, recipe, paths, err)
        served = ", ".join(f"{name}={path}" for name, path in paths.items()) or "stand-ins of rank 8, untrained"
    else:
        if schemes or agents or paths or pool_workflows or max_running:
            raise DescantError("The server at --url has its scheme, adapters and pool: give --adapters NAME,… alone.")
        names = _list(adapters, "--adapters", str)
        if not names:
            raise DescantError("Say which adapters of the server are the agents: --adapters NAME,….")
        wanted |= {"agents": (len(names),)}
        Recipe(**{**wanted, "schemes": ()}).check()
        running = others_server(url, names)
        deploy = running.deploy
        wanted |= {"schemes": (running.scheme,), "max_running": running.max_running}
        recipe = Recipe(**wanted)
        recipe = replace(recipe, pool_workflows=running.pool_tokens / recipe.trajectory)
        checkpoint = model or running.model
        served = f"{', '.join(names)} of a server that was there"
    vocabulary = vocabulary_of(checkpoint)
    vocabulary.check(recipe.trajectory)
    head = {
        **asdict(recipe),
        "trajectory": recipe.trajectory,
        "pool_tokens": recipe.pool_tokens,
        "model": f"{checkpoint.name} (config {_digest(checkpoint / 'config.json')})",
        "adapters": served,
        "versions": versions(),
        "machine": machine(),
    }
    line = ["descant", *sys.argv[1:]]
    book = Book(output, head, {"command": line, "at": datetime.now().astimezone().isoformat(timespec="seconds")})
    if book.cells:
        there = "is" if len(book.cells) == 1 else "are"
        note(
            f"{counted(len(book.cells), 'cell')} {there} in {output} already; "
            + ("going on from there." if left(recipe, book) else "nothing is left to measure.")
        )
    try:
        failed = sweep(recipe, deploy, vocabulary, book, err, note)
    except (KeyboardInterrupt, SystemExit):
        note(f"To go on: the same command again, {shlex.join(line)}")
        raise
    measured = sum(cell.error is None for cell in book.cells.values())
    out.print(
        f"{output}: {counted(measured, 'measured cell')}. descant bench report {output}",
        highlight=False,
        soft_wrap=True,
    )
    if failed:
        raise DescantError(
            f"{counted(len(failed), 'cell')} without a measurement; the same command tries again. The first: "
            f"{failed[0].error}"
        )


@bench_app.command()
@command
def report(
    file: Annotated[Path, typer.Argument(help="What descant bench agents wrote.", show_default=False)],
    output: Annotated[
        Path | None, typer.Option(help="Folder of report.md and the plots; by the file's name.", show_default=False)
    ] = None,
    plots: Annotated[bool, typer.Option(help="Draw the plots; needs matplotlib.")] = True,
) -> None:
    """Turn a benchmark's file into Markdown tables and plots."""
    from descant.workflows.bench.cells import measured
    from descant.workflows.bench.plots import plot
    from descant.workflows.bench.report import render

    bench = measured(file)
    text = render(bench)
    folder = output or file.with_name(f"{file.stem}-report")
    print(text)
    written = [folder / "report.md"]
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        _replaceable(written[0])
        written[0].write_text(text, encoding="utf-8")
        if plots:
            written += plot(bench, folder)
    note(f"Written: {', '.join(map(str, written))}")


@bench_app.command()
@command
def export(
    output: Annotated[Path, typer.Argument(metavar="FILE", help="The data set to write.", show_default=False)],
    adapters: Annotated[str, typer.Option(metavar="NAME,…", help="The agents' adapters on the server.")],
    shape: Shape = "react",
    csv: Csv = None,
    turns: Turns = None,
    choice: Choice = None,
    scale: Scale = None,
    workflows: Workflows = None,
    seed: Seed = 0,
    model: Model = None,
) -> None:
    """Write a load as independent requests for sglang.bench_serving, to check figures with SGLang's own tool."""
    from descant.runtime.checkpoint import demo_checkpoint
    from descant.workflows.bench.export import export as write
    from descant.workflows.bench.presets import DEFAULTS, PRESETS
    from descant.workflows.bench.traces import schedule
    from descant.workflows.bench.vocabulary import vocabulary_of

    new(output)
    names = listed(adapters, "--adapters", str)
    trace, chosen = turns_of(csv, shape, turns, choice)
    load = schedule(
        trace,
        workflows=workflows or PRESETS["small"]["workflows"],
        agents=len(names),
        choice=chosen,
        scale=DEFAULTS["scale"] if scale is None else scale,
        rate=1.0,
        seed=seed,
    )
    checkpoint = model or demo_checkpoint(err)
    vocabulary = vocabulary_of(checkpoint)
    vocabulary.check(load[0].tokens)
    count = write(load, names, vocabulary, seed, output)
    words = ["python", "-m", "sglang.bench_serving", "--backend", "sglang", "--dataset-name", "openai"]
    words += ["--dataset-path", str(output), "--num-prompts", str(count), "--tokenizer", str(checkpoint)]
    note("Each turn stands alone there: none waits for the one before it, and what agents generate is not read again.")
    out.print(shlex.join([*words, "--request-rate", "1", "--port", "30000"]), highlight=False, soft_wrap=True)


def _replaceable(file: Path) -> None:
    """Raise DescantError if the file is there and no earlier report."""
    from descant.workflows.bench.report import BEGINNING

    if file.exists() and not file.read_text(encoding="utf-8", errors="replace").startswith(BEGINNING):
        raise DescantError(f"{file} is there and no benchmark's report: give another --output.")


def _list(text: str | None, option: str, kind: Callable[[str], T]) -> tuple[T, ...] | None:
    """Words between commas; None if the option is not given."""
    return None if text is None else listed(text, option, kind)


def _rates(text: str | None) -> tuple[float, ...] | None:
    """Workflows a second; none where saturation is looked for."""
    words = [word.strip() for word in (text or "").split(",")]
    if words == ["search"]:
        return ()
    if "search" in words:
        raise DescantError(f"--rates {text} has search beside other rates: search stands alone.")
    found = _list(text, "--rates", float)
    if found and min(found) < SLOWEST:
        raise DescantError(f"--rates {text} has one below {SLOWEST} workflows/s: give higher ones.")
    return found


def _paths(text: str | None) -> dict[str, Path]:
    """Adapters' folders by name."""
    paths: dict[str, Path] = {}
    for word in _list(text, "--lora-paths", str) or ():
        name, _, path = (part.strip() for part in word.partition("="))
        if not name or not path:
            raise DescantError(f"--lora-paths has {word!r} between its commas: write NAME=PATH,….")
        if name in paths:
            raise DescantError(f"--lora-paths names {name} twice: give each adapter a name of its own.")
        paths[name] = Path(path)
    if wrong := [name for name, path in paths.items() if not path.is_dir()]:
        raise DescantError(f"--lora-paths names no folder for {', '.join(wrong)}: write NAME=PATH,….")
    if wrong := [name for name, path in paths.items() if not (path / "adapter_config.json").is_file()]:
        raise DescantError(
            f"--lora-paths names a folder without adapter_config.json for {', '.join(wrong)}: give those of adapters."
        )
    return paths


def _digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()[:12]
