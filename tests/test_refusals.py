"""What a sharing scheme cannot serve is refused before a worker starts: one sentence, the thing and the way out."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tiny
from sglang.srt.arg_groups.overrides import resolving_view

from descant.sglang_ext.server_args import (
    ATTENTION_BACKENDS,
    UNPAIRABLE,
    UNSHARABLE,
    Refused,
    SharingServerArgs,
    choose_attention_backend,
    validate_sharing,
)

# A value that is not among those allowed.
OTHER: dict[str, Any] = {
    "radix_cache_backend": "mine",
    "disaggregation_mode": "prefill",
    "speculative_algorithm": "EAGLE",
    "dllm_algorithm": "LowConfidence",
    "kv_cache_dtype": "fp8_e5m2",
    "lora_backend": "ascend",
    "device": "xpu",
}


def _args(**given: Any) -> Any:
    return SharingServerArgs(model_path="none", kv_sharing=given.pop("kv_sharing", "icarus"), **given)


def _other(name: str, allowed: tuple[Any, ...]) -> Any:
    if name in OTHER:
        return OTHER[name]
    return True if False in allowed else 2


@pytest.mark.parametrize(
    ("scheme", "name", "allowed"),
    [("fullshared", name, allowed) for name, allowed, _ in UNSHARABLE]
    + [("icarus", name, allowed) for name, allowed, _ in (*UNSHARABLE, *UNPAIRABLE)],
)
def test_each_option_is_refused_by_name(scheme: str, name: str, allowed: tuple[Any, ...]) -> None:
    with pytest.raises(Refused) as refused:
        validate_sharing(_args(kv_sharing=scheme, **{name: _other(name, allowed)}))
    said = str(refused.value)
    assert said.startswith("--" + name.replace("_", "-"))
    assert f"--kv-sharing {scheme}" in said
    assert "--kv-sharing nonshared" in said
    assert "\n" not in said


@pytest.mark.parametrize("name", [name for name, _, _ in (*UNSHARABLE, *UNPAIRABLE)])
def test_nonshared_refuses_none_of_them(name: str) -> None:
    allowed = {n: a for n, a, _ in (*UNSHARABLE, *UNPAIRABLE)}[name]
    validate_sharing(_args(kv_sharing="nonshared", **{name: _other(name, allowed)}))


@pytest.mark.parametrize(
    ("device", "served"), [(device, name) for device, names in ATTENTION_BACKENDS.items() for name in names]
)
def test_each_device_has_its_attention_backends(device: str, served: str) -> None:
    validate_sharing(_args(device=device, attention_backend=served))
    for other in {"fa3", "trtllm_mha", "torch_native", "triton"} - {*ATTENTION_BACKENDS[device]}:
        with pytest.raises(Refused, match=f"--attention-backend {other} cannot .* rows on {device} need"):
            validate_sharing(_args(device=device, attention_backend=other))
        validate_sharing(_args(kv_sharing="fullshared", device=device, attention_backend=other))


@pytest.mark.parametrize("phase", ["prefill", "decode"])
def test_one_attention_backend_serves_both_phases(phase: str) -> None:
    name = f"{phase}_attention_backend"
    validate_sharing(_args(device="cuda", attention_backend="triton", **{name: "triton"}))
    with pytest.raises(Refused, match=f"--{phase}-attention-backend fa3 cannot be used .* prefill and decode alike"):
        validate_sharing(_args(device="cuda", attention_backend="triton", **{name: "fa3"}))


def test_a_gpu_without_a_choice_gets_a_backend_that_serves() -> None:
    """SGLang would take fa3 on Hopper and trtllm_mha on Blackwell."""
    args = _args(device="cuda")
    choose_attention_backend(args)
    assert resolving_view(args).attention_backend == ATTENTION_BACKENDS["cuda"][0]
    for untouched in (
        _args(device="cuda", kv_sharing="nonshared"),
        _args(device="cpu"),
        _args(device="cuda", prefill_attention_backend="fa3"),
    ):
        choose_attention_backend(untouched)
        assert resolving_view(untouched).attention_backend is None


def test_an_unknown_scheme_is_refused() -> None:
    with pytest.raises(Refused, match="--kv-sharing shared is unknown; choose one of nonshared, icarus, fullshared"):
        validate_sharing(_args(kv_sharing="shared"))


def test_one_adapter_slot_is_not_enough() -> None:
    with pytest.raises(Refused, match="--max-loras-per-batch 1 leaves no slot"):
        validate_sharing(_args(max_loras_per_batch=1))


@pytest.mark.parametrize("scheme", ["nonshared", "fullshared"])
def test_allow_kv_adapters_belongs_to_icarus(scheme: str) -> None:
    with pytest.raises(Refused, match="--allow-kv-adapters needs --kv-sharing icarus"):
        validate_sharing(_args(kv_sharing=scheme, allow_kv_adapters=True))


@pytest.mark.parametrize("form", ["dict", "pairs", "records"])
def test_an_adapter_is_refused_in_whatever_form_it_is_given(
    checkpoint: Callable[[str], tiny.Checkpoint], tmp_path: Path, form: str
) -> None:
    path = str(tiny.save_adapter(checkpoint("llama").model, tmp_path, seed=1, modules=["q_proj", "v_proj"]))
    paths = {"dict": {"bad": path}, "pairs": [f"bad={path}"], "records": [{"lora_name": "bad", "lora_path": path}]}
    with pytest.raises(Refused, match="Adapter 'bad' updates v_proj, which has no effect under --kv-sharing icarus"):
        validate_sharing(_args(lora_paths=paths[form]))
    validate_sharing(_args(lora_paths=paths[form], allow_kv_adapters=True))


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ("{not json", "is not valid JSON"),
        ("[1]", "holds no JSON object"),
        ('"LORA"', "holds no JSON object"),
        ('{"peft_type": "LORA"}', "does not say r"),
        ('{"peft_type": "LORA", "r": "8", "lora_alpha": 8, "target_modules": []}', "says r='8', which is no rank"),
        (None, "is no PEFT adapter"),
    ],
)
def test_a_damaged_config_is_named(tmp_path: Path, config: str | None, words: str) -> None:
    if config is not None:
        (tmp_path / "adapter_config.json").write_text(config)
    with pytest.raises(Refused, match=f"^Adapter 'bad' cannot be loaded: {tmp_path}.* {words}"):
        validate_sharing(_args(lora_paths={"bad": str(tmp_path)}))


def test_an_adapter_that_is_not_there_is_named_unless_it_may_be_on_the_hub(tmp_path: Path) -> None:
    with pytest.raises(Refused, match=f"Adapter 'bad' cannot be loaded: {tmp_path}/no does not exist"):
        validate_sharing(_args(lora_paths={"bad": f"{tmp_path}/no"}))
    validate_sharing(_args(lora_paths={"far": "somebody/adapter"}))


@pytest.mark.parametrize("scheme", ["icarus", "fullshared"])
def test_the_name_that_the_base_model_is_booked_under_is_taken(scheme: str) -> None:
    for paths in ({"base": "somebody/adapter"}, ["base=somebody/adapter"]):
        with pytest.raises(Refused, match=f"No adapter can be called 'base' under --kv-sharing {scheme}"):
            validate_sharing(_args(kv_sharing=scheme, lora_paths=paths))
        validate_sharing(_args(kv_sharing="nonshared", lora_paths=paths))


def _serve(*arguments: str) -> tuple[int, str]:
    """Exit code and output of a `sglang serve` that is expected to end by itself."""
    command = [str(Path(sys.executable).with_name("sglang")), "serve", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    return done.returncode, done.stdout + done.stderr


def test_the_command_ends_with_the_sentence_alone(checkpoint: Callable[[str], tiny.Checkpoint]) -> None:
    code, output = _serve(
        "--model-path", str(checkpoint("llama").model), "--kv-sharing", "icarus", "--speculative-algorithm", "NGRAM"
    )  # fmt: skip
    assert code == 1
    assert "Traceback" not in output
    assert output.strip().splitlines()[-1].startswith("descant: --speculative-algorithm NGRAM cannot be used with")


def test_a_mixture_of_experts_is_refused_by_name(tmp_path: Path) -> None:
    """Known only once the model is loaded: a worker says it, and the server ends."""
    from transformers import MixtralConfig, MixtralForCausalLM

    config = MixtralConfig(
        vocab_size=tiny.VOCAB_SIZE,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        num_local_experts=4,
        num_experts_per_tok=2,
        sliding_window=None,
    )
    MixtralForCausalLM(config).save_pretrained(tmp_path / "moe")
    tiny.save_tokenizer(tmp_path / "moe")
    code, output = _serve(
        "--model-path", str(tmp_path / "moe"), "--kv-sharing", "icarus", "--max-total-tokens", "512",
        "--dtype", "float32", "--enable-lora", "--max-lora-rank", "8", "--lora-target-modules", "q_proj", "o_proj",
    )  # fmt: skip
    assert code != 0
    assert "--kv-sharing icarus cannot serve MixtralForCausalLM: it is a mixture of experts;" in output
