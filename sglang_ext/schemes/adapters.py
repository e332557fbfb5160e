"""May a scheme serve this adapter? Asked of its PEFT config by the server and by `descant adapters check` alike."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from descant.sglang_ext.schemes.base import Scheme

BASE = "base"  # what the counts of requests without an adapter are booked under

# What PEFT's shorthands stand for in the models that schemes serve.
LINEAR_MODULES = frozenset({"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"})

# Options of PEFT's LoraConfig whose arithmetic SGLang does not carry out; served, they would be wrong in silence.
UNSUPPORTED_OPTIONS: Mapping[str, str] = {
    "use_dora": "DoRA",
    "rank_pattern": "a rank per module",
    "alpha_pattern": "an alpha per module",
    "modules_to_save": "fully trained modules",
    "trainable_token_indices": "trained tokens",
    "target_parameters": "updates of bare parameters",
    "lora_bias": "a bias beside lora_B",
    "layer_replication": "replicated layers",
    "alora_invocation_tokens": "activated LoRA",
    "arrow_config": "Arrow routing",
    "kasa_config": "KaSA",
    "use_qalora": "QALoRA",
    "use_bdlora": "block-diagonal LoRA",
}

# Where `descant train` records {"method": …, "base": …}: PEFT keeps this free-form field and reads none of
# it where there is a task type; keys of our own beside it would make PEFT warn at each load.
RECORD = "descant"


def training_record(config: Mapping[str, Any]) -> Mapping[str, str]:
    """What an adapter_config.json says of its training: "method" and, if it could be told, "base", the fingerprint of
    the base model. Empty if `descant train` did not write it."""
    mapping = config.get("auto_mapping")
    record = mapping.get(RECORD) if isinstance(mapping, Mapping) else None
    return {key: str(value) for key, value in record.items() if value} if isinstance(record, Mapping) else {}


def refusal_of_base(name: str, config: Mapping[str, Any], base: str | None) -> str | None:
    """One sentence if the adapter was trained on another base model than the one with the fingerprint `base`."""
    recorded = training_record(config).get("base")
    if recorded is None or base is None or recorded == base:
        return None
    return (
        f"Adapter '{name}' was trained on another base model, {config.get('base_model_name_or_path')} "
        f"({recorded[:19]}…, this one is {base[:19]}…): serve it with that one, or train it on this one."
    )


def refusal(
    scheme: Scheme,
    name: str,
    config: Mapping[str, Any],
    allow_kv_adapters: bool = False,
    base: str | None = None,
) -> str | None:
    """One sentence that says why `scheme` cannot serve the adapter `name`, or None if it can.

    Args:
        config: the adapter's adapter_config.json.
        base: fingerprint of the model that serves, None if it could not be told.
        allow_kv_adapters: the user knows that updates which the scheme can only drop are dropped.
    """
    if not scheme.shares_namespace:
        return None  # upstream's own checks are all there is
    if reason := refusal_of_base(name, config, base):
        return reason
    if (kind := str(config.get("peft_type", "LORA")).upper()) != "LORA":
        return f"Adapter '{name}' is of PEFT type {kind}, and SGLang serves LORA only: export it as LoRA."
    for option, meaning in UNSUPPORTED_OPTIONS.items():
        if config.get(option):
            return (
                f"Adapter '{name}' uses {option} ({meaning}), which SGLang does not compute: "
                f"train or export it without this option."
            )
    if (bias := config.get("bias", "none")) != "none":
        return f"Adapter '{name}' trains biases (bias='{bias}'), which SGLang does not compute: train with bias='none'."
    reason = refusal_of_modules(scheme, name, targeted_modules(config.get("target_modules")), allow_kv_adapters)
    if reason and (method := training_record(config).get("method")):
        return f"{reason[:-1]} (it was trained with --method {method})."
    return reason


def refusal_of_name(scheme: Scheme, name: str) -> str | None:
    """As `refusal`, from the name that requests give the adapter."""
    if scheme.shares_namespace and name == BASE:
        return (
            f"No adapter can be called '{BASE}' under --kv-sharing {scheme.name}, which counts the base model's "
            f"requests under that name: choose another."
        )
    return None


def refusal_of_modules(scheme: Scheme, name: str, modules: set[str], allow_kv_adapters: bool = False) -> str | None:
    """As `refusal`, from the names of the modules that the adapter updates ("q_proj", ...) alone."""
    served = modules - scheme.dropped_modules(modules) if allow_kv_adapters else modules
    return scheme.refuse_adapter(name, served)


def targeted_modules(target_modules: str | Iterable[str] | None) -> set[str]:
    """The last parts of the module names that a config's `target_modules` gives; "all-linear" counts as every one."""
    if target_modules in ("all-linear", "all"):
        return set(LINEAR_MODULES)
    if target_modules is None:
        return set()
    names = [target_modules] if isinstance(target_modules, str) else target_modules
    return {module.rsplit(".", 1)[-1] for module in names}
