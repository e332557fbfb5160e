"""Tokens read per second by `descant train`, icarus beside lora: the demo's model, float32, rank 4, two threads.

    python bench/training.py

Samples have 400 tokens, of which a role says 80 in five places; with --opening N, all begin with the same N tokens.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
from pathlib import Path

import torch
from rich.console import Console

from descant.agents.training.train import Recipe, train
from descant.runtime.checkpoint import demo_checkpoint

TOKENS, TURNS, SAID = 400, 5, 16
SAMPLES, STEPS, BATCH = 12, 5, 4


def write_samples(file: Path, opening: int) -> None:
    rng = random.Random(0)

    def span(role: str | None, tokens: int) -> dict[str, object]:
        return {"role": role, "ids": [rng.randrange(1000, 40000) for _ in range(tokens)]}

    alike = span(None, opening)
    heard = (TOKENS - opening) // TURNS - SAID
    with file.open("w") as stream:
        for _ in range(SAMPLES):
            turns = [part for _ in range(TURNS) for part in (span(None, heard), span("plan", SAID))]
            stream.write(json.dumps({"opening": "", "spans": [alike, *turns]}) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--opening", type=int, default=0, help="tokens that all samples begin with")
    parser.add_argument("--methods", nargs="+", default=["icarus", "lora"])
    parser.add_argument("--threads", type=int, default=2)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    console = Console(stderr=True)
    model = demo_checkpoint(console)
    with tempfile.TemporaryDirectory() as work:
        data = Path(work) / "samples.jsonl"
        write_samples(data, given.opening)
        for method in given.methods:
            recipe = Recipe(
                method=method, model=model, data=data, role="plan", rank=4, max_steps=STEPS, batch_size=BATCH
            )
            trained = train(recipe, Path(work) / method, console)
            print(json.dumps({"method": method, "tokens_read_per_second": round(trained.tokens_per_second, 1)}))


if __name__ == "__main__":
    main()
