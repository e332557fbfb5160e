"""Which base model is in a folder: a fingerprint that an adapter records and the server compares.

It needs neither torch nor SGLang, and reads some kilobytes: every tensor's name, dtype and shape, a few bytes of each,
and what of the configuration decides how they are used. The same weights in another folder, or in other shards, have
the same fingerprint; a fine-tuned or a converted copy has another.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from huggingface_hub import try_to_load_from_cache
from huggingface_hub.errors import HFValidationError

from descant.sglang_ext.schemes.adapter_files import read_header

SAMPLE_BYTES = 64
# Configuration that shapes do not tell.
ARITHMETIC = (
    "model_type",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "hidden_act",
    "rms_norm_eps",
    "rope_theta",
    "rope_scaling",
    "rope_parameters",
    "sliding_window",
    "layer_types",
)


def fingerprint_of(model: str) -> str | None:
    """Of what --model-path names: a folder, or a model of the Hub that lies in its cache."""
    if os.path.isdir(model):
        return fingerprint(Path(model).resolve())
    try:
        config = try_to_load_from_cache(model, "config.json")
    except HFValidationError:  # neither a folder nor a name: SGLang will say so
        return None
    return fingerprint(Path(config).parent) if isinstance(config, str) else None


@cache
def fingerprint(model: Path) -> str | None:
    """ "sha256:…" of the checkpoint in the folder `model`; None if it holds no whole safetensors checkpoint."""
    digest = hashlib.sha256()
    try:
        config = json.loads((model / "config.json").read_text())
        digest.update(json.dumps([config.get(name) for name in ARITHMETIC]).encode())
        tensors = sorted(entry for shard in model.glob("*.safetensors") for entry in _tensors(shard))
        for name, kind, sample in tensors:
            digest.update(f"{name} {kind} ".encode() + sample)
    except (OSError, ValueError, KeyError, AttributeError):
        return None
    return f"sha256:{digest.hexdigest()}" if tensors else None


def _tensors(shard: Path) -> Iterator[tuple[str, str, bytes]]:
    """Name, dtype with shape, and bytes from the middle of each tensor in the file."""
    with shard.open("rb") as stream:
        for name, tensor in read_header(shard).items():
            stream.seek((tensor.begin + tensor.end) // 2)
            size = min(SAMPLE_BYTES, (tensor.end - tensor.begin) // 2)
            yield name, f"{tensor.dtype} {list(tensor.shape)}", stream.read(size)
