"""What each scheme says of an adapter, from its config alone."""

from __future__ import annotations

import pytest

from descant.sglang_ext.schemes import SCHEMES, scheme_named
from descant.sglang_ext.schemes.adapters import refusal, targeted_modules

ICARUS = SCHEMES["icarus"]
SERVED = {"peft_type": "LORA", "target_modules": ["q_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]}


def test_names_are_the_flags_choices() -> None:
    assert list(SCHEMES) == ["nonshared", "icarus", "fullshared"]
    with pytest.raises(ValueError, match="choose one of nonshared, icarus, fullshared"):
        scheme_named("shared")


def test_an_icarus_adapter_is_served() -> None:
    assert refusal(ICARUS, "plan", SERVED) is None


@pytest.mark.parametrize("target", [["q_proj", "v_proj"], ["model.layers.0.self_attn.k_proj"], "all-linear"])
def test_icarus_names_adapter_modules_and_ways_out(target: str | list[str]) -> None:
    reason = refusal(ICARUS, "plan", {**SERVED, "target_modules": target})
    assert reason is not None
    assert "'plan'" in reason
    assert "k_proj" in reason or "v_proj" in reason
    assert "--kv-sharing nonshared" in reason
    assert "--allow-kv-adapters" in reason
    assert refusal(ICARUS, "plan", {**SERVED, "target_modules": target}, allow_kv_adapters=True) is None


def test_icarus_refuses_the_head_whatever_is_allowed() -> None:
    config = {**SERVED, "target_modules": ["q_proj", "lm_head"]}
    for allowed in (False, True):
        reason = refusal(ICARUS, "plan", config, allow_kv_adapters=allowed)
        assert reason is not None
        assert "lm_head" in reason


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("use_dora", True),
        ("rank_pattern", {"q_proj": 4}),
        ("alpha_pattern", {"q_proj": 4}),
        ("modules_to_save", ["embed_tokens"]),
        ("bias", "all"),
        ("lora_bias", True),
        ("peft_type", "IA3"),
        ("target_parameters", ["x"]),
    ],
)
@pytest.mark.parametrize("scheme", ["icarus", "fullshared"])
def test_what_sglang_does_not_compute_is_refused_by_name(scheme: str, option: str, value: object) -> None:
    reason = refusal(SCHEMES[scheme], "plan", {**SERVED, option: value})
    assert reason is not None
    assert "'plan'" in reason
    assert option in reason or str(value) in reason


def test_nonshared_leaves_adapters_to_upstream() -> None:
    assert refusal(SCHEMES["nonshared"], "plan", {"target_modules": "all-linear", "use_dora": True}) is None


def test_module_names_are_last_parts() -> None:
    assert targeted_modules(["self_attn.q_proj", "o_proj"]) == {"q_proj", "o_proj"}
    assert {"k_proj", "down_proj"} <= targeted_modules("all-linear")
    assert targeted_modules(None) == set()
