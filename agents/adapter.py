"""Looking into a PEFT adapter before it is served: what it updates, and whether a sharing scheme can serve it."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from descant.agents.safetensors_file import is_zero
from descant.runtime.errors import DescantError
from descant.sglang_ext.schemes import SCHEMES
from descant.sglang_ext.schemes.adapter_files import (
    CONFIG,
    LAYER,
    LORA_TENSOR,
    WEIGHTS,
    AdapterFileError,
    StoredTensor,
    read_config,
    read_header,
)
from descant.sglang_ext.schemes.adapters import (
    UNSUPPORTED_OPTIONS,
    refusal,
    refusal_of_base,
    refusal_of_modules,
    targeted_modules,
    training_record,
)


@dataclass(frozen=True)
class ModuleUpdate:
    """What an adapter does to one kind of module.

    name: the module's last name, "q_proj".
    layers: how many layers it is updated in.
    zero: whether every B is zero, so that the update changes nothing.
    """

    name: str
    layers: int
    zero: bool


@dataclass(frozen=True)
class AdapterReport:
    """What is in an adapter's folder.

    config: its adapter_config.json.
    targets: the modules that the config names; empty if it gives a pattern.
    updates: what its weights really hold.
    flaws: sentences on why no scheme can serve it.
    notes: sentences worth knowing that do not stop it.
    """

    path: Path
    config: Mapping[str, Any]
    base_model: str
    rank: int
    alpha: float
    targets: tuple[str, ...]
    updates: tuple[ModuleUpdate, ...]
    flaws: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return self.path.resolve().name

    @property
    def method(self) -> str | None:
        """How `descant train` trained it; None if something else did."""
        return training_record(self.config).get("method")

    def refusal(self, scheme: str, base: str | None = None) -> str | None:
        """One sentence on why `scheme` cannot serve the adapter, or None.

        The server judges the config; here the weights are judged too, since they may update more than the config says.

        Args:
            base: fingerprint of the model that shall serve it, if that is known.
        """
        if self.flaws:
            return self.flaws[0]
        if reason := refusal_of_base(self.name, self.config, base):
            return reason
        updated = {update.name for update in self.updates}
        return refusal(SCHEMES[scheme], self.name, self.config) or refusal_of_modules(
            SCHEMES[scheme], self.name, updated
        )

    def as_json(self) -> dict[str, Any]:
        return {
            "base_model": self.base_model,
            "method": self.method,
            "rank": self.rank,
            "alpha": self.alpha,
            "targets": list(self.targets),
            "updates": [vars(update) for update in self.updates],
            "notes": list(self.notes),
        }


def require_scheme(name: str) -> None:
    """Raise DescantError if there is no scheme `name`."""
    if name not in SCHEMES:
        raise DescantError(f"There is no scheme {name!r}: choose one of {', '.join(SCHEMES)}.")


def inspect_adapter(path: Path) -> AdapterReport:
    """Read the config and the weights' table of contents in the folder `path`, and the B tensors for zeros.

    Raises:
        DescantError: something there is missing or cannot be read.
    """
    weights = path / WEIGHTS
    try:
        config = read_config(path)
        if not weights.is_file() and (path / "adapter_model.bin").is_file():
            raise DescantError(
                f"{path} holds pickled weights (adapter_model.bin): save it with safe_serialization=True."
            )
        tensors = read_header(weights)
    except AdapterFileError as error:
        raise DescantError(str(error)) from error
    try:
        rank, alpha = int(config["r"]), float(config["lora_alpha"])
    except (KeyError, TypeError, ValueError):
        rank, alpha = 0, 0.0
    halves = _by_module(tensors)
    pattern = isinstance(config.get("target_modules"), str) and config["target_modules"] not in ("all-linear", "all")
    targets = () if pattern else tuple(sorted(targeted_modules(config.get("target_modules"))))
    updates = tuple(
        ModuleUpdate(
            name=module,
            layers=len({match[1] if (match := LAYER.search(tensor)) else tensor for tensor in halves[module]["B"]}),
            zero=all(is_zero(weights, tensors[tensor]) for tensor in halves[module]["B"]),
        )
        for module in sorted(halves)
    )
    return AdapterReport(
        path=path,
        config=config,
        base_model=str(config.get("base_model_name_or_path") or "not named"),
        rank=rank,
        alpha=alpha,
        targets=targets,
        updates=updates,
        flaws=tuple(_flaws(path, config, rank, tensors, halves)),
        notes=tuple(_notes(path, config, tensors, targets, updates)),
    )


def _by_module(tensors: dict[str, StoredTensor]) -> dict[str, dict[str, list[str]]]:
    """Tensor names by module and half: {"q_proj": {"A": […], "B": […]}}."""
    found: dict[str, dict[str, list[str]]] = defaultdict(lambda: {"A": [], "B": []})
    for name in tensors:
        if match := LORA_TENSOR.search(name):
            found[match["module"]][match["half"]].append(name)
    return dict(found)


def _flaws(
    path: Path,
    config: dict[str, Any],
    rank: int,
    tensors: dict[str, StoredTensor],
    halves: dict[str, dict[str, list[str]]],
) -> list[str]:
    name = f"Adapter '{path.resolve().name}'"
    flaws = []
    if str(config.get("peft_type", "")).upper() != "LORA":
        flaws.append(
            f"{name} is of type {config.get('peft_type')!r}, and SGLang serves LORA only: train a LoRA adapter."
        )
    if config.get("use_dora"):
        flaws.append(f"{name} is a DoRA adapter, which SGLang cannot load: train it with use_dora=False.")
    if rank <= 0:
        flaws.append(f"{name} has no rank r or no lora_alpha in {CONFIG}: save the adapter again.")
    if not halves:
        flaws.append(f"{name} holds no LoRA tensors in {WEIGHTS}: save the trained adapter again.")
    for module, names in halves.items():
        if len(names["A"]) != len(names["B"]):
            flaws.append(
                f"{name} has {len(names['A'])} A and {len(names['B'])} B for {module}: save the adapter again."
            )
        ranks = {size for tensor in names["A"] for size in tensors[tensor].shape[:1]}
        if rank > 0 and ranks - {rank}:
            flaws.append(
                f"{name} has tensors of rank {', '.join(map(str, sorted(ranks)))} for {module}, "
                f"but {CONFIG} says r={rank}: export it with one rank."
            )
    added, vocabulary = _added_tokens(path), _vocabulary_size(config)
    if vocabulary is not None and (new := [token for token, index in added.items() if index >= vocabulary]):
        flaws.append(
            f"{name} adds {len(new)} tokens to the vocabulary, which SGLang cannot serve: train it without them."
        )
    return flaws


def _notes(
    path: Path,
    config: dict[str, Any],
    tensors: dict[str, StoredTensor],
    targets: tuple[str, ...],
    updates: tuple[ModuleUpdate, ...],
) -> list[str]:
    notes = [
        f"It uses {option} ({meaning}), which SGLang does not compute: nonshared serves it without, the others refuse."
        for option, meaning in UNSUPPORTED_OPTIONS.items()
        if config.get(option)
    ]
    if strangers := [name for name in tensors if not LORA_TENSOR.search(name)]:
        notes.append(f"{len(strangers)} tensors are no LoRA pairs, such as {strangers[0]}: SGLang ignores them.")
    held = {update.name for update in updates}
    if targets and (missing := set(targets) - held):
        notes.append(f"{CONFIG} names {', '.join(sorted(missing))}, but there are no weights for it.")
    if targets and (surplus := held - set(targets)):
        notes.append(f"There are weights for {', '.join(sorted(surplus))}, which {CONFIG} does not name.")
    if zero := [update.name for update in updates if update.zero]:
        notes.append(f"Every B of {', '.join(zero)} is zero: that part changes nothing.")
    if config.get("use_rslora"):
        notes.append(
            "rsLoRA: the sharing schemes scale it by alpha / sqrt(r); nonshared, as SGLang does, by alpha / r."
        )
    if training_record(config).get("method") == "lora":
        notes.append("It was trained with --method lora: only nonshared gives the answers that it was trained to give.")
    if (added := _added_tokens(path)) and _vocabulary_size(config) is None:
        notes.append(
            f"added_tokens.json lists {len(added)} tokens: the server refuses the adapter if the base model lacks any, "
            f"which cannot be told here without the base model's folder."
        )
    return notes


def _added_tokens(path: Path) -> dict[str, int]:
    try:
        tokens = json.loads((path / "added_tokens.json").read_text())
    except (OSError, ValueError):
        return {}  # no file, or one that SGLang does not read either
    return {str(token): int(index) for token, index in tokens.items()} if isinstance(tokens, dict) else {}


def _vocabulary_size(config: dict[str, Any]) -> int | None:
    try:
        base = json.loads((Path(str(config.get("base_model_name_or_path"))) / "config.json").read_text())
        return int(base["vocab_size"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
