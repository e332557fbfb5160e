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


def vocabulary_of(model: Path) -> Vocabulary:
    """That of a checkpoint: its config.json's, less all tokens that its tokenizer.json, if any, adds.

    Raises:
        DescantError: the folder has no readable config.json with vocab_size and max_position_embeddings.
    """
    try:
        config = json.loads((model / "config.json").read_text(encoding="utf-8"))
        config = config.get("text_config", config)
        size, context = int(config["vocab_size"]), int(config["max_position_embeddings"])
    except (OSError, ValueError, KeyError, AttributeError) as error:
        raise DescantError(
            f"{model} does not say how large its vocabulary is ({type(error).__name__}): give the folder of a Hugging "
            "Face model with --model."
        ) from error
    tokenizer = model / "tokenizer.json"
    added = json.loads(tokenizer.read_text(encoding="utf-8")).get("added_tokens", []) if tokenizer.is_file() else []
    return Vocabulary(size, frozenset(token["id"] for token in added), context)
