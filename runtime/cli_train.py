"""The command that trains adapters: `descant train`."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from descant.runtime.console import command, err, note, out


@command
def train(
    data: Annotated[
        Path, typer.Option(help="JSONL of conversations, or of trajectories with a role a span.", show_default=False)
    ],
    output: Annotated[Path, typer.Option(help="Folder of the adapter.", show_default=False)],
    method: Annotated[
        str, typer.Option(help="icarus: reads the base model's KV, as served by it. lora: the conventional way.")
    ] = "icarus",
    model: Annotated[
        Path | None, typer.Option(exists=True, help="A checkpoint, in place of the demo's SmolLM2-135M-Instruct.")
    ] = None,
    role: Annotated[str | None, typer.Option(help="Whose spans to learn; conversations need none.")] = None,
    eval_data: Annotated[Path | None, typer.Option(help="Samples to evaluate on, as in --data.")] = None,
    eval_share: Annotated[
        float, typer.Option(min=0, max=1, help="Share of --data to evaluate on, in place of --eval-data.")
    ] = 0.0,
    max_length: Annotated[
        int | None, typer.Option(min=2, help="Tokens of a sample, the rest is cut off; by default the context's.")
    ] = None,
    rank: Annotated[int, typer.Option(min=1)] = 8,
    alpha: Annotated[float | None, typer.Option(help="The update's scale times the rank; by default 2 * rank.")] = None,
    targets: Annotated[
        str | None,
        typer.Option(
            metavar="NAME,…",
            help="Modules to adapt; q_proj,o_proj,gate_proj,up_proj,down_proj, and under lora k_proj,v_proj too.",
        ),
    ] = None,
    dropout: Annotated[float, typer.Option(min=0, max=0.99, help="LoRA's dropout.")] = 0.0,
    epochs: Annotated[float, typer.Option(min=0.001)] = 3.0,
    max_steps: Annotated[int | None, typer.Option(min=1, help="Optimizer steps, in place of --epochs.")] = None,
    learning_rate: Annotated[float, typer.Option(min=0)] = 5e-4,
    schedule: Annotated[str, typer.Option(help="constant, linear or cosine.")] = "cosine",
    warmup: Annotated[float, typer.Option(min=0, max=1, help="Share of the steps in which the rate rises.")] = 0.03,
    batch_size: Annotated[int, typer.Option(min=1, help="Samples that are read together.")] = 8,
    accumulation: Annotated[int, typer.Option(min=1, help="Batches of an optimizer step.")] = 1,
    seed: Annotated[int, typer.Option()] = 0,
    bf16: Annotated[
        bool, typer.Option("--bf16", help="The base model in bfloat16; the adapter stays float32.")
    ] = False,
    checkpointing: Annotated[
        bool, typer.Option("--checkpointing", help="Compute activations twice, for less memory.")
    ] = False,
    eval_every: Annotated[int | None, typer.Option(min=1, help="Steps; by default once an epoch.")] = None,
    save_every: Annotated[int | None, typer.Option(min=1, help="Steps; by default once an epoch.")] = None,
    patience: Annotated[
        int | None, typer.Option(min=1, help="Stop after so many evaluations without a better one.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on from the last checkpoint in --output.")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print a JSON object a step; the last is the result.")
    ] = False,
) -> None:
    """Train a role's LoRA adapter, for agents on one KV cache or the conventional way."""
    os.environ["HF_HUB_OFFLINE"] = "1"  # every checkpoint is a local folder
    from descant.agents.training.saving import checkpoints
    from descant.agents.training.train import Recipe
    from descant.agents.training.train import train as run
    from descant.runtime.checkpoint import demo_checkpoint

    recipe = Recipe(
        method=method,
        model=model or demo_checkpoint(err),
        data=data,
        role=role,
        eval_data=eval_data,
        eval_share=eval_share,
        max_length=max_length,
        rank=rank,
        alpha=alpha,
        targets=tuple(name.strip() for name in targets.split(",")) if targets else (),
        dropout=dropout,
        epochs=epochs,
        max_steps=max_steps,
        learning_rate=learning_rate,
        schedule=schedule,
        warmup=warmup,
        batch_size=batch_size,
        accumulation=accumulation,
        seed=seed,
        bf16=bf16,
        checkpointing=checkpointing,
        eval_every=eval_every,
        save_every=save_every,
        patience=patience,
    )
    try:
        trained = run(recipe, output, err, resume=resume, note=note, emit=_print if as_json else None)
    except (KeyboardInterrupt, SystemExit):
        saved = checkpoints(output / "checkpoints")
        begun = f"To go on from {saved[-1].name}: the same command with --resume." if saved else "Nothing is saved yet."
        note(begun)
        raise
    if as_json:
        _print({**asdict(trained), "adapter": str(trained.adapter)})
        return
    held_out = f", {trained.eval_loss:.4f} held out" if trained.eval_loss is not None else ""
    early = ", ended early" if trained.early else ""
    out.print(
        f"{trained.adapter}: loss {trained.loss:.4f}{held_out} after {trained.steps} steps{early}, "
        f"{trained.tokens_per_second:,.0f} tokens read/s.",
        highlight=False,
        soft_wrap=True,
    )


def _print(event: Mapping[str, Any]) -> None:
    print(json.dumps(event), flush=True)
