"""What happens to a worker's model once its adapters are loaded."""

from __future__ import annotations

from typing import Any

from descant.sglang_ext.active import active_scheme
from descant.sglang_ext.model import pair_model


def pair_loaded_model(result: None, runner: Any) -> None:
    """After ModelRunner.init_lora_manager: the LoRA layers are in place, no graph has been captured."""
    scheme = active_scheme()
    if scheme.pairs_rows:
        pair_model(runner.model, runner.model_config.num_hidden_layers, scheme)
