"""The servers that the ICaRus tests share: every model class once, each with another way of batching and paging.

A test names those it runs on with `@on("llama", ...)` and takes the fixtures `server` and `ours`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

CHUNK = 16  # tokens of prefill a step, where a deployment has small chunks
POOL = 600  # tokens of KV, where a deployment is short of them

DEPLOYMENTS: Mapping[str, Mapping[str, Any]] = {
    # Room for adapters that come later, of any rank up to 32 and any module.
    "llama": {
        "enable_metrics": True,
        "max_lora_rank": 32,
        "lora_target_modules": ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"),
    },
    "roomy": {"max_total_tokens": 16384},
    "qwen2": {"chunked_prefill_size": CHUNK, "enable_mixed_chunk": True},
    "qwen3": {"page_size": 16, "chunked_prefill_size": CHUNK, "enable_mixed_chunk": True},
    # Two adapters a batch beside the base model, and a scheduler that admits more than fits; at SGLang's older door.
    "mistral": {
        "module": "sglang.launch_server",
        "max_loras_per_batch": 3,
        "max_total_tokens": POOL,
        "schedule_conservativeness": 0.01,
    },
}

# Where a deployment's model is not the tiny one of its name: its family, and what of it differs. The ready-made graphs'
# opening fills most of a tiny model's context.
MODELS: Mapping[str, tuple[str, Mapping[str, Any]]] = {"roomy": ("llama", {"max_position_embeddings": 8192})}


def on(*names: str) -> pytest.MarkDecorator:
    """Run the test once on each of these `DEPLOYMENTS`."""
    return pytest.mark.parametrize("deployment", names)
