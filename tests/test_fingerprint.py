"""A base model's fingerprint: the same wherever and however its weights lie, another for any other model."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import tiny
import torch
from transformers import AutoModelForCausalLM

from descant.sglang_ext.fingerprint import fingerprint, fingerprint_of


@pytest.fixture(scope="module")
def model(checkpoint: Callable[[str], tiny.Checkpoint]) -> Path:
    return checkpoint("qwen2").model


def test_a_copy_and_other_shards_are_the_same_model(model: Path, tmp_path: Path) -> None:
    own = fingerprint(model)
    assert own is not None
    assert own.startswith("sha256:")
    shutil.copytree(model, tmp_path / "copy")
    assert fingerprint_of(str(tmp_path / "copy")) == own
    loaded = AutoModelForCausalLM.from_pretrained(model)
    loaded.save_pretrained(tmp_path / "shards", max_shard_size="100KB")
    assert len(list((tmp_path / "shards").glob("*.safetensors"))) > 1
    assert fingerprint(tmp_path / "shards") == own


@pytest.mark.parametrize("name", ["model.layers.0.self_attn.q_proj.bias", "model.norm.weight", "lm_head.weight"])
def test_a_model_tuned_in_one_tensor_is_another(model: Path, tmp_path: Path, name: str) -> None:
    tuned = AutoModelForCausalLM.from_pretrained(model)
    with torch.no_grad():
        dict(tuned.named_parameters())[name].mul_(1.01)
    tuned.save_pretrained(tmp_path / "tuned")
    assert fingerprint(tmp_path / "tuned") not in (None, fingerprint(model))


def test_the_same_weights_used_otherwise_are_another_model(model: Path, tmp_path: Path) -> None:
    shutil.copytree(model, tmp_path / "copy")
    config = json.loads((model / "config.json").read_text())
    (tmp_path / "copy/config.json").write_text(json.dumps({**config, "num_attention_heads": 2}))
    assert fingerprint(tmp_path / "copy") not in (None, fingerprint(model))


def test_what_is_no_checkpoint_has_none(model: Path, tmp_path: Path) -> None:
    assert fingerprint(tmp_path) is None
    (tmp_path / "config.json").write_text("{}")
    assert fingerprint(tmp_path) is None
    shutil.copytree(model, tmp_path / "cut")
    (tmp_path / "cut/model.safetensors").write_bytes(b"\x40\0\0\0\0\0\0\0{")
    assert fingerprint(tmp_path / "cut") is None
    for name in ("nobody/nothing", "/nowhere/at/all", "none"):
        assert fingerprint_of(name) is None
