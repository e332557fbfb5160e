"""A decoder-only Transformer by the sizes in its config.json: parameters, KV bytes, and what an adapter adds."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from descant.runtime.errors import DescantError

DTYPE_BYTES = 2  # bfloat16, for weights, adapters and KV alike


@dataclass(frozen=True)
class Model:
    """Sizes of a dense model with gated MLPs and grouped queries, such as Llama's and Qwen3's.

    Norms, biases and rotary tables are left out: less than a thousandth of the parameters.
    """

    name: str
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocab: int
    tied: bool

    def modules(self) -> dict[str, tuple[int, int]]:
        """Inputs and outputs of each of a layer's projections."""
        queries, keys = self.heads * self.head_dim, self.kv_heads * self.head_dim
        return {
            "q_proj": (self.hidden, queries),
            "k_proj": (self.hidden, keys),
            "v_proj": (self.hidden, keys),
            "o_proj": (queries, self.hidden),
            "gate_proj": (self.hidden, self.intermediate),
            "up_proj": (self.hidden, self.intermediate),
            "down_proj": (self.intermediate, self.hidden),
        }

    @property
    def layer_parameters(self) -> int:
        """Of all layers: what every row is multiplied with."""
        return self.layers * sum(inputs * outputs for inputs, outputs in self.modules().values())

    @property
    def head_parameters(self) -> int:
        """Of the language-model head: what rows are multiplied with whose logits are wanted."""
        return self.hidden * self.vocab

    @property
    def parameters(self) -> int:
        """Of the whole model; a tied head is the embedding."""
        return self.layer_parameters + self.head_parameters * (1 if self.tied else 2)

    @property
    def kv_bytes(self) -> int:
        """Bytes of a token's K and V."""
        return 2 * self.layers * self.kv_heads * self.head_dim * DTYPE_BYTES

    def adapter_parameters(self, rank: int, targets: tuple[str, ...]) -> int:
        """Of a LoRA adapter: A is [rank, inputs] and B is [outputs, rank] for each target in each layer."""
        sizes = self.modules()
        return self.layers * rank * sum(sum(sizes[name]) for name in targets)


OPTIONAL = ("num_key_value_heads", "head_dim")
SIZES = ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "vocab_size", *OPTIONAL)

# From the config.json that each model was published with: meta-llama/Llama-3.1-8B, Qwen/Qwen3-14B.
MODELS = {
    model.name: model
    for model in (
        Model("Llama-3.1-8B", 4096, 32, 32, 8, 128, 14336, 128256, tied=False),
        Model("Qwen3-14B", 5120, 40, 40, 8, 128, 17408, 151936, tied=False),
    )
}


def model_at(path: Path) -> Model:
    """The model whose config.json `path` is, or holds.

    Raises:
        DescantError: there is no such file, or it lacks one of the sizes, or has one that is none.
    """
    file = path / "config.json" if path.is_dir() else path
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
        config = {name: _size(name, value) if name in SIZES else value for name, value in config.items()}
        hidden, heads = config["hidden_size"], config["num_attention_heads"]
        return Model(
            name=file.resolve().parent.name,
            hidden=hidden,
            layers=config["num_hidden_layers"],
            heads=heads,
            kv_heads=config.get("num_key_value_heads") or heads,
            head_dim=config.get("head_dim") or _size("hidden_size / num_attention_heads", hidden // heads),
            intermediate=config["intermediate_size"],
            vocab=config["vocab_size"],
            tied=bool(config.get("tie_word_embeddings", False)),
        )
    except OSError as error:
        raise DescantError(
            f"No configuration at {file} ({error.strerror}): give a Hugging Face model's folder or its config.json, "
            f"or one of {', '.join(MODELS)}."
        ) from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise DescantError(
            f"{file} is no configuration of a dense decoder-only model ({error}): it needs the sizes of Llama's."
        ) from error


def _size(name: str, value: object) -> Any:
    if value is None and name in OPTIONAL:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not 0 < value < 2**31:
        raise ValueError(f"its {name} is {str(value)[:40]}")
    return value
