"""The token ids that random prompts are made of."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from pathlib import Path

from descant.runtime.errors import DescantError


@dataclass(frozen=True)
class Vocabulary:
    """Ids 0 to size - 1, but for the special ones.

    context: tokens that the model takes, prompt and answer together.
    """

    size: int
    special: frozenset[int] = frozenset()
    context: int = 2**31

    def draw(self, count: int, seed: str) -> list[int]:
        """`count` random ids, the same ones for the same seed."""
        draw = random.Random(seed)
        ids: list[int] = []
        while len(ids) < count:
            if (token := draw.randrange(self.size)) not in self.special:
                ids.append(token)
        return ids

    def check(self, trajectory: int) -> None:
        """Raise DescantError if the model cannot take a workflow that grows to so many tokens."""
        if trajectory > self.context:
            raise DescantError(
                f"A workflow grows to {trajectory} tokens and the model takes {self.context}: give a smaller "
                "--scale, or fewer --turns."
            )


def vocabulary_of(model: Path) -> Vocabulary:
    """That of a checkpoint: its config.json's, less all tokens that its tokenizer.json, if any, adds.

    Raises:
        DescantError: the folder has no readable config.json with vocab_size and max_position_embeddings.
    """
    try:
        config = json.loads((model / "config.json").read_text(encoding="utf-8"))
        config = config.get("text_config", config)
        size, context = int(config["vocab_size"]), int(config["max_position_embeddings"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise DescantError(
            f"{model} does not say how large its vocabulary is ({type(error).__name__}): give the folder of a Hugging "
            "Face model with --model."
        ) from error
    tokenizer = model / "tokenizer.json"
    try:
        added = json.loads(tokenizer.read_text(encoding="utf-8")).get("added_tokens", []) if tokenizer.is_file() else []
        special = frozenset(int(token["id"]) for token in added)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise DescantError(
            f"{tokenizer} is no tokenizer ({type(error).__name__}): give the folder of a Hugging Face model with "
            "--model."
        ) from error
    if context < 1 or not set(range(min(size, len(special) + 1))) - special:
        raise DescantError(
            f"{model} has a vocabulary of {size} tokens, {len(special)} of them special, and takes {context}: give the "
            "folder of a Hugging Face model with --model."
        )
    return Vocabulary(size, special, context)
