"""What the tests of `descant train` share: small trajectories, a recipe for them, and a model as training has it."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel
from rich.console import Console
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoModelForCausalLM

from descant.agents.training.data import Sample
from descant.agents.training.icarus import ATTENTION, logits, pack
from descant.agents.training.train import Recipe, Trained, train

TEXT = "the planner thinks , the actor looks things up and the critic reflects on what they found ; yes no true"
WORDS = TEXT.split(" ")


def write_trajectories(file: Path, count: int, seed: int = 0) -> Path:
    """`count` trajectories of plan, act and reflect, of unequal lengths."""
    rng = random.Random(seed)

    def words(most: int) -> str:
        return " ".join(rng.choices(WORDS, k=rng.randint(2, most)))

    with file.open("w") as stream:
        for _ in range(count):
            spans: list[dict[str, Any]] = []
            for role in ("plan", "act", "reflect"):
                spans += [{"role": None, "text": f"\n{role}:"}, {"role": role, "text": " " + words(12)}]
            spans.append({"role": None, "text": "\nObservation: " + words(6)})
            stream.write(json.dumps({"opening": words(20), "spans": spans}) + "\n")
    return file


def recipe(model: Path, data: Path, **changes: Any) -> Recipe:
    """A short run that changes every weight."""
    defaults: dict[str, Any] = {
        "method": "icarus",
        "role": "plan",
        "rank": 4,
        "max_steps": 6,
        "batch_size": 4,
        "learning_rate": 1e-2,
        "save_every": 2,
    }
    return Recipe(model=model, data=data, **{**defaults, **changes})


def run(recipe: Recipe, output: Path, **options: Any) -> Trained:
    return train(recipe, output, Console(quiet=True), **options)


def weights(adapter: Path) -> dict[str, Tensor]:
    return load_file(adapter / "adapter_model.safetensors")


def log(output: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (output / "log.jsonl").read_text().splitlines()]


def furthest(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> float:
    """The largest difference between two adapters' weights."""
    assert one.keys() == other.keys()
    return max((one[name] - other[name]).abs().max().item() for name in one)


def load(model: Path, adapter: Path) -> PeftModel:
    """The adapted model as training has it, its adapter trainable."""
    base = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32, attn_implementation=ATTENTION)
    return PeftModel.from_pretrained(base, adapter, is_trainable=True)


def sample(tokens: list[int], rows: list[int]) -> Sample:
    """A sample whose rows shall say what follows them in `tokens`."""
    return Sample(tokens[: rows[-1] + 1], rows, [tokens[row + 1] for row in rows])


def logprobs(model: PeftModel, samples: list[Sample], method: str = "icarus") -> Tensor:
    """Log-probabilities [M, V] at the rows of packed samples, in training's forward."""
    return logits(model, pack(samples), method).log_softmax(dim=-1)
