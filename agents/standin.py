"""Stand-in adapters: untrained adapters with fixed seeds, for roles that have no trained one, and for benchmarks.

They make each agent's outputs its own, small enough to stay fluent. They have learned no role.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from descant.runtime.cache import cache_dir, is_whole, published
from descant.runtime.errors import DescantError

ROLES = {"plan": 101, "act": 102, "reflect": 103}  # role: seed
# No k_proj and v_proj: under ICaRus the base model alone writes K and V.
TARGETS = ("q_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
RANK = 8
B_STD = 0.02
LABEL = "stand-in (untrained)"


def standin_adapters(
    model: Path, seeds: Mapping[str, int] = ROLES, targets: Sequence[str] = TARGETS
) -> dict[str, Path]:
    """Folders of adapters for the checkpoint in `model`, by name, made at the first call.

    Args:
        seeds: each adapter's, by its name; by default plan, act and reflect.
        targets: the modules that they update.

    Raises:
        DescantError: the checkpoint has no readable configuration, or lacks the modules that the adapters target.
    """
    try:
        config = (model / "config.json").read_bytes()
    except OSError as error:
        raise DescantError(
            f"{model} is no checkpoint (config.json: {error.strerror}): give the folder of a Hugging Face model."
        ) from error
    model = model.resolve()  # which each adapter's config names, so that they are those of this folder alone
    recipe = json.dumps([str(model), seeds, targets, RANK, B_STD]).encode()
    root = cache_dir() / f"standins-{hashlib.sha256(config + recipe).hexdigest()[:12]}"
    if not is_whole(root):
        with published(root) as scratch:
            for name, seed in seeds.items():
                _make(model, seed, targets, scratch / name)
    return {name: root / name for name in seeds}


def _make(model: Path, seed: int, targets: Sequence[str], folder: Path) -> None:
    import torch
    from peft import LoraConfig, get_peft_model, get_peft_model_state_dict
    from safetensors.torch import save_file
    from transformers import AutoConfig, AutoModelForCausalLM

    with torch.device("meta"):  # only names and shapes are needed, whatever the model's size
        base = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(model))
    base.config._name_or_path = str(model)
    config = LoraConfig(
        r=RANK, lora_alpha=RANK, target_modules=list(targets), task_type="CAUSAL_LM", inference_mode=True
    )
    try:
        shapes = get_peft_model_state_dict(get_peft_model(base, config, low_cpu_mem_usage=True))
    except ValueError as error:
        raise DescantError(
            f"No stand-in adapter can be made for {model}: it lacks {', '.join(targets)}; "
            f"give a Llama, Qwen or Mistral checkpoint."
        ) from error
    generator = torch.Generator().manual_seed(seed)
    weights = {}
    for name, tensor in sorted(shapes.items()):
        std = B_STD if "lora_B" in name else tensor.shape[1] ** -0.5  # A: [r, in], unit gain; B: [out, r]
        weights[name] = torch.randn(tensor.shape, generator=generator) * std
    folder.mkdir()
    save_file(weights, folder / "adapter_model.safetensors", metadata={"format": "pt"})
    config.base_model_name_or_path = str(model)
    config.save_pretrained(folder)
