"""The reference, held against Transformers, against PEFT, and against ICaRus done one row at a time."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import tiny
import torch
from check import TOLERANCE
from reference import Reference
from transformers import AutoModelForCausalLM, DynamicCache

TOKENS = tiny.random_tokens(40, seed=1)


def difference(a: torch.Tensor, b: torch.Tensor) -> float:
    return float((a - b).abs().max())


@pytest.fixture(params=tiny.FAMILIES)
def family(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def ours(family: str, reference: Callable[[str], Reference]) -> Reference:
    return reference(family)


@pytest.fixture
def model(family: str, checkpoint: Callable[[str], tiny.Checkpoint]) -> Path:
    return checkpoint(family).model


@torch.no_grad()
def transformers_logprobs(model: Path) -> torch.Tensor:
    """[L, V]: what Transformers' own attention gives for `TOKENS`."""
    theirs = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32, attn_implementation="sdpa")
    return theirs(input_ids=torch.tensor([TOKENS])).logits[0].log_softmax(dim=-1)


def test_base_is_transformers_own(ours: Reference, model: Path) -> None:
    theirs = transformers_logprobs(model)
    assert theirs.std() > 1, "the tiny model's logits are too flat to tell right from wrong"
    assert difference(ours.icarus(TOKENS, None), theirs) < 1e-4
    assert difference(ours.conventional(TOKENS, None), theirs) < 1e-4


def test_zero_adapter_is_the_base_model(model: Path, tmp_path: Path) -> None:
    zero = tiny.save_adapter(model, tmp_path / "zero", seed=1, strength=0.0)
    ours = Reference(model, {"zero": zero})
    assert difference(ours.icarus(TOKENS, "zero"), transformers_logprobs(model)) < 1e-4


@pytest.mark.parametrize("adapter", tiny.AGENTS)
def test_every_adapter_shows(ours: Reference, adapter: str) -> None:
    """Each adapter differs from the base model, and ICaRus from ordinary LoRA, by far more than the tolerance."""
    icarus = ours.icarus(TOKENS, adapter)
    assert difference(icarus, ours.icarus(TOKENS, None)) > 50 * TOLERANCE
    assert difference(icarus, ours.conventional(TOKENS, adapter)) > 50 * TOLERANCE


def test_adapters_differ_from_one_another(ours: Reference) -> None:
    plan, act, reflect = (ours.icarus(TOKENS, name) for name in ("plan", "act", "reflect"))
    assert min(difference(plan, act), difference(act, reflect), difference(reflect, plan)) > 50 * TOLERANCE


@pytest.mark.parametrize(("layer", "same"), [(2, True), (0, False)], ids=["last", "first"])
def test_icarus_is_ordinary_lora_only_where_no_cache_follows(
    model: Path, tmp_path: Path, layer: int, same: bool
) -> None:
    """An update of the last layer reaches no K or V; one of the first layer reaches those of every later layer."""
    path = tiny.save_adapter(model, tmp_path / "layer", seed=1, layers_to_transform=[layer])
    ours = Reference(model, {"layer": path})
    gap = difference(ours.icarus(TOKENS, "layer"), ours.conventional(TOKENS, "layer"))
    assert (gap < 1e-4) if same else (gap > 50 * TOLERANCE)


def test_key_and_value_updates_have_no_effect(model: Path, tmp_path: Path) -> None:
    path = tiny.save_adapter(model, tmp_path / "kv", seed=1, modules=("k_proj", "v_proj"))
    ours = Reference(model, {"kv": path})
    assert difference(ours.icarus(TOKENS, "kv"), ours.icarus(TOKENS, None)) < 1e-4
    assert difference(ours.conventional(TOKENS, "kv"), ours.icarus(TOKENS, None)) > 50 * TOLERANCE


def test_a_position_sees_only_what_is_before_it(ours: Reference) -> None:
    at_once = ours.icarus(TOKENS, "plan")
    for length in (1, 2, 17, len(TOKENS)):
        assert difference(ours.icarus(TOKENS[:length], "plan")[-1], at_once[length - 1]) < 1e-4


class EncoderCache(DynamicCache):
    """The encoder's cache as a decoder row sees it: it reads all of it, its own position included, and adds nothing."""

    def __init__(self, encoder: DynamicCache) -> None:
        super().__init__()
        self.encoder = encoder

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *args: object, **kwargs: object
    ) -> tuple[torch.Tensor, torch.Tensor]:
        layer = self.encoder.layers[layer_idx]
        return layer.keys, layer.values


@torch.no_grad()
def test_all_at_once_is_row_by_row(ours: Reference) -> None:
    """design.md's own words: at each position an encoder row that writes, then a decoder row that only reads."""
    cache = DynamicCache()
    rows = []
    for position, token in enumerate(TOKENS):
        row = {"input_ids": torch.tensor([[token]]), "position_ids": torch.tensor([[position]]), "own_kv": []}
        with ours.model.disable_adapter():
            ours.model(**row, past_key_values=cache, use_cache=True, encoder_kv=None)
        ours.model.set_adapter("plan")
        logits = ours.model(**row, past_key_values=EncoderCache(cache), use_cache=True, encoder_kv=None).logits
        rows.append(logits[0, -1].log_softmax(dim=-1))
    assert difference(torch.stack(rows), ours.icarus(TOKENS, "plan")) < 1e-4


def test_greedy_extends_by_the_most_likely_token(ours: Reference) -> None:
    output = ours.greedy(TOKENS, "plan", new_tokens=6)
    logprobs = ours.icarus(TOKENS + output, "plan")
    assert output == logprobs[len(TOKENS) - 1 : -1].argmax(dim=-1).tolist()
