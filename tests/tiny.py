"""Tiny random models and PEFT adapters, saved as the ordinary checkpoints a user would serve.

They are small enough for a forward in milliseconds, yet scaled so that their logits have a standard deviation above one
and every part of the architecture (biases, q/k norms, grouped heads, tied embeddings) changes the result.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    AutoModelForCausalLM,
    LlamaConfig,
    MistralConfig,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen3Config,
)

FAMILIES = ("llama", "qwen2", "qwen3", "mistral")
VOCAB_SIZE = 410  # not a multiple of 64, so the engine has to pad it
CONTEXT = 1024
BOS, EOS = "<|bos|>", "<|eos|>"
CHAT_TEMPLATE = "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}"

# What ICaRus can train: everything but the two projections that write the cache.
AGENT_MODULES = ("q_proj", "o_proj", "gate_proj", "up_proj", "down_proj")

# The adapters that every tiny model is served with, each of another rank. The first three are the usual agents; the
# rest update only some modules or layers, and with them there are more adapters than a batch has slots for.
ADAPTERS: Mapping[str, Mapping[str, Any]] = {
    "plan": {"seed": 11, "rank": 8, "alpha": 16},
    "act": {"seed": 12, "rank": 4, "alpha": 4},
    "reflect": {"seed": 13, "rank": 16, "alpha": 16},
    "wide": {"seed": 14, "rank": 32, "alpha": 32, "modules": ("o_proj", "gate_proj")},
    "narrow": {"seed": 15, "rank": 2, "alpha": 8, "modules": ("q_proj", "down_proj")},
    "upper": {"seed": 16, "rank": 6, "alpha": 6, "layers_to_transform": [1, 2]},
}
AGENTS = ("plan", "act", "reflect")

_CORPUS = (
    "The planner thinks, the actor looks things up, and the critic reflects on what they found. "
    'Action: search("Lisbon")  Observation: {"city": "Lisbon", "population": 517802, "country": "Portugal"} '
    "Thought: I know the population now; the answer is 517802. Question: which city is larger, Porto or Lisbon? "
    "A descant is an independent voice over a shared line. 0123456789 true false null yes no first second third "
)


def save_tokenizer(path: Path) -> PreTrainedTokenizerFast:
    """Train a byte-level BPE of exactly `VOCAB_SIZE` tokens on a fixed text, save it at `path`, return it."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=[BOS, EOS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([_CORPUS] * 2, trainer)
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token=BOS, eos_token=EOS)
    assert len(fast) == VOCAB_SIZE, f"the tokenizer has {len(fast)} tokens, the models expect {VOCAB_SIZE}"
    fast.chat_template = CHAT_TEMPLATE
    fast.save_pretrained(path)
    return fast


def _config(family: str, changes: Mapping[str, Any]) -> PretrainedConfig:
    """The family's config: 3 layers, 4 query heads over 2 KV heads; what differs is what the family is known for."""
    common: dict[str, Any] = {
        "vocab_size": VOCAB_SIZE,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": CONTEXT,
        "bos_token_id": 0,
        "eos_token_id": 1,
        "pad_token_id": None,
        "dtype": "float32",
        **changes,
    }
    match family:
        case "llama":
            return LlamaConfig(**common, tie_word_embeddings=False)
        case "qwen2":
            return Qwen2Config(**common, tie_word_embeddings=False)
        case "qwen3":
            return Qwen3Config(**common, head_dim=32, tie_word_embeddings=True)
        case "mistral":
            return MistralConfig(**common, head_dim=16, sliding_window=None, tie_word_embeddings=False)
    raise ValueError(f"No tiny model for the family {family!r}; there is one for each of {', '.join(FAMILIES)}.")


@torch.no_grad()
def _randomise(model: PreTrainedModel, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)

    def normal(parameter: torch.Tensor, std: float, mean: float = 0.0) -> None:
        parameter.copy_(mean + std * torch.randn(parameter.shape, generator=generator))

    for name, parameter in model.named_parameters():
        if name.endswith("norm.weight"):
            normal(parameter, 0.2, mean=1.0)
        elif name.endswith(".bias"):
            normal(parameter, 0.5)
        elif name.endswith(("embed_tokens.weight", "lm_head.weight")):
            normal(parameter, 2.0 * parameter.shape[1] ** -0.5)
        else:
            gain = 1.5 if name.endswith(("q_proj.weight", "k_proj.weight")) else 1.0
            normal(parameter, gain * parameter.shape[1] ** -0.5)


def save_model(family: str, path: Path, **changes: Any) -> Path:
    """Save a random `family` model in float32, with its tokenizer, at `path`; return `path`.

    `changes` are of its config's common part (`num_attention_heads`, ...).

    Raises ValueError for a family that is not in `FAMILIES`.
    """
    model = AutoModelForCausalLM.from_config(_config(family, changes), dtype=torch.float32)
    _randomise(model, seed=FAMILIES.index(family))
    model.generation_config.bos_token_id, model.generation_config.eos_token_id = 0, 1
    model.save_pretrained(path)
    save_tokenizer(path)
    return path


def save_adapter(
    model_path: Path,
    path: Path,
    *,
    seed: int,
    modules: Iterable[str] = AGENT_MODULES,
    rank: int = 8,
    alpha: float = 16,
    strength: float = 0.5,
    **lora: Any,
) -> Path:
    """Save with PEFT an adapter of the model at `model_path`, A and B random; return `path`.

    `strength` is the update's size relative to the base weight's. `lora` goes to `LoraConfig` as it is (`use_dora`,
    `rank_pattern`, `layers_to_transform`, ...).
    """
    base = AutoModelForCausalLM.from_pretrained(model_path, dtype=torch.float32)
    config = LoraConfig(
        r=rank, lora_alpha=alpha, target_modules=sorted(modules), lora_dropout=0.0, task_type="CAUSAL_LM", **lora
    )
    model = get_peft_model(base, config)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_A" in name:  # [r, in]
                std = parameter.shape[1] ** -0.5
            elif "lora_B" in name:  # [out, r]
                std = strength * rank**0.5 / alpha
            else:
                continue
            parameter.copy_(std * torch.randn(parameter.shape, generator=generator))
    model.save_pretrained(path)
    return path


@dataclass(frozen=True)
class Checkpoint:
    """A saved model and its saved adapters, by the name they are served under."""

    model: Path
    adapters: Mapping[str, Path]


def save_checkpoint(family: str, root: Path, **changes: Any) -> Checkpoint:
    """Save the tiny model of `family`, its config with `changes`, and its `ADAPTERS` under `root`."""
    model = save_model(family, root / family, **changes)
    adapters = {name: save_adapter(model, root / f"{family}-{name}", **spec) for name, spec in ADAPTERS.items()}
    return Checkpoint(model, adapters)


def random_tokens(length: int, seed: int) -> list[int]:
    """`length` ordinary token ids, the same for the same seed: no bos, no eos, and not the last id of the vocabulary,
    which the engine reports as 0 in input log-probabilities."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(2, VOCAB_SIZE - 1, (length,), generator=generator).tolist()
