"""Train the role adapters over places: `python -m descant.workflows.geography.adapters FOLDER`.

Writes the data and trains plan, act and reflect into FOLDER/METHOD/ROLE, by ICaRus and, with the same data, budget and
seed, the conventional way. The same command goes on where it was cut off. `--ship` puts the ICaRus adapters, in
bfloat16, where the demo finds them.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import torch
from rich.console import Console
from safetensors.torch import load_file, save_file

from descant.agents.adapter import CONFIG, WEIGHTS
from descant.agents.shipped import FOLDER as SHIPPED
from descant.agents.standin import ROLES
from descant.agents.training.saving import checkpoints, whole
from descant.agents.training.train import Recipe, train
from descant.runtime.checkpoint import demo_checkpoint
from descant.runtime.errors import DescantError
from descant.workflows.geography.data import TRAIN, write

METHODS = ("icarus", "lora")
DEV = 32  # runs
RANK = 4  # 2 MB a role in bfloat16
STEPS, BATCH, EVALUATE = 240, 4, 40
# At 3e-3 act reached its best held-out loss at half of the steps and was no better.
RATES = {"plan": 3e-3, "act": 1e-3, "reflect": 3e-3}


def recipe(method: str, role: str, data: Path, model: Path, steps: int = STEPS) -> Recipe:
    """How an adapter over places is trained; `data` holds train.jsonl and dev.jsonl."""
    return Recipe(
        method=method,
        model=model,
        data=data / "train.jsonl",
        eval_data=data / "dev.jsonl",
        role=role,
        rank=RANK,
        max_steps=steps,
        batch_size=BATCH,
        learning_rate=RATES[role],
        bf16=True,
        eval_every=min(EVALUATE, steps),
        save_every=min(EVALUATE, steps),
    )


def ship(trained: Path, shipped: Path = SHIPPED) -> None:
    """Copy each role's adapter from `trained` to `shipped`, its weights in bfloat16.

    Raises:
        DescantError: one is missing, and nothing is copied; or one cannot be written, and what was there stays.
    """
    if missing := [role for role in ROLES if not (trained / role / CONFIG).is_file()]:
        raise DescantError(f"{trained} has no adapter {', '.join(missing)}: train it first, without --methods lora.")
    for role in ROLES:
        weights = {name: tensor.to(torch.bfloat16) for name, tensor in load_file(trained / role / WEIGHTS).items()}
        with whole(shipped / role) as scratch:
            save_file(weights, scratch / WEIGHTS, metadata={"format": "pt"})
            (scratch / CONFIG).write_text((trained / role / CONFIG).read_text())


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m descant.workflows.geography.adapters",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--roles", nargs="+", choices=ROLES, default=list(ROLES))
    parser.add_argument("--steps", type=int, default=STEPS, metavar="N", help="of each run (%(default)s)")
    parser.add_argument("--ship", action="store_true", help="then put the ICaRus adapters into the package")
    options = parser.parse_args()
    if options.steps < 1:
        parser.error("--steps: give 1 or more")
    new = options.roles if "icarus" in options.methods else []
    if options.ship and (
        lacking := [role for role in ROLES if role not in new and not (options.folder / "icarus" / role).is_dir()]
    ):
        parser.error(f"--ship needs icarus adapters of all roles: train {', '.join(lacking)} too, or leave out --ship")
    console = Console(stderr=True)
    model = demo_checkpoint(console)
    write(options.folder / "data", TRAIN, DEV)
    for method in options.methods:
        for role in options.roles:
            output = options.folder / method / role
            if (output / CONFIG).is_file():
                continue
            trained = train(
                recipe(method, role, options.folder / "data", model, options.steps),
                output,
                console,
                resume=bool(checkpoints(output / "checkpoints")),
            )
            print(
                f"{output}: loss {trained.loss:.4f}, {trained.eval_loss:.4f} held out, "
                f"{trained.tokens_per_second:.0f} tokens read/s",
                flush=True,
            )
    if options.ship:
        ship(options.folder / "icarus")


if __name__ == "__main__":
    try:
        main()
    except DescantError as error:
        sys.exit(str(error))
