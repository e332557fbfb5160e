"""The files of a PEFT adapter: its config, and the table of contents of its weights, read without torch.

Asked by the server, before SGLang would fail on them, and by `descant adapters check` alike. Safetensors' format: 8
bytes, little-endian, the length of a JSON header; the header; the tensors' bytes (huggingface/safetensors, "Format").
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

CONFIG = "adapter_config.json"
WEIGHTS = "adapter_model.safetensors"
LORA_TENSOR = re.compile(r"(?:^|\.)(?P<module>\w+)\.lora_(?:embedding_)?(?P<half>[AB])(?:\.weight)?$")
LAYER = re.compile(r"\.layers\.(\d+)\.")
HUB_NAME = re.compile(r"[\w.-]+(/[\w.-]+)?")


class AdapterFileError(ValueError):
    """An adapter's files cannot be read: one sentence that says what, where, and the way out."""


@dataclass(frozen=True)
class StoredTensor:
    """One entry of the header: dtype as the format spells it, shape, bytes [begin, end) of the file."""

    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


def on_this_machine(path: str) -> bool:
    """Whether SGLang takes `path` for a folder, and not for the name of a repository to download."""
    return Path(path).exists() or HUB_NAME.fullmatch(path) is None


def read_adapter(folder: Path) -> tuple[dict[str, Any], dict[str, StoredTensor]]:
    """The config, and the tensors by name (none, where the weights are pickled).

    Raises:
        AdapterFileError: something that SGLang needs is missing or damaged.
    """
    config = read_config(folder)
    for key in ("peft_type", "r", "lora_alpha", "target_modules"):
        if config.get(key) is None:
            raise AdapterFileError(f"{folder / CONFIG} does not say {key}: save the adapter again.")
    if not isinstance(config["r"], int) or config["r"] < 1:
        raise AdapterFileError(f"{folder / CONFIG} says r={config['r']!r}, which is no rank: save the adapter again.")
    files = sorted(folder.glob("*.safetensors"))
    if not files and not [*folder.glob("*.bin"), *folder.glob("*.pt")]:
        raise AdapterFileError(f"{folder} holds no weights ({WEIGHTS}): save the adapter again.")
    return config, {name: tensor for file in files for name, tensor in read_header(file).items()}


def read_config(folder: Path) -> dict[str, Any]:
    """adapter_config.json.

    Raises:
        AdapterFileError: it is missing, or no JSON object.
    """
    if not folder.exists():
        raise AdapterFileError(f"{folder} does not exist: give the folder of a PEFT adapter.")
    file = folder / CONFIG
    try:
        config = json.loads(file.read_text())
    except OSError as error:
        raise AdapterFileError(
            f"{folder} is no PEFT adapter ({CONFIG}: {error.strerror}): give the folder that save_pretrained wrote."
        ) from error
    except ValueError as error:
        raise AdapterFileError(f"{file} is not valid JSON ({error}): save the adapter again.") from error
    if not isinstance(config, dict):
        raise AdapterFileError(f"{file} holds no JSON object: save the adapter again.")
    return config


def read_header(file: Path) -> dict[str, StoredTensor]:
    """The tensors in `file` by name.

    Raises:
        AdapterFileError: the file is missing, is no safetensors file, or is cut short.
    """
    try:
        size = file.stat().st_size
        with file.open("rb") as stream:
            length = int.from_bytes(stream.read(8), "little")
            if not 2 <= length <= size - 8:
                raise ValueError("its header is longer than the file")
            header = json.loads(stream.read(length))
        start = 8 + length
        tensors = {
            name: StoredTensor(
                entry["dtype"], tuple(entry["shape"]), *(start + offset for offset in entry["data_offsets"])
            )
            for name, entry in header.items()
            if name != "__metadata__"
        }
    except OSError as error:
        raise AdapterFileError(f"{file} cannot be read ({error.strerror}): check the path.") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise AdapterFileError(f"{file} is no safetensors file ({error}): save the adapter again.") from error
    if any(tensor.end > size for tensor in tensors.values()):
        raise AdapterFileError(f"{file} is cut short at {size} bytes: copy or save the adapter again.")
    return tensors


def misfit(
    tensors: Mapping[str, StoredTensor], rank: int, layers: int, widths: Mapping[str, tuple[int, int]]
) -> str | None:
    """What of an adapter does not fit a base model, "NAME is [1, 2], not [3, 4]", or None.

    Args:
        rank: what its config says.
        layers: how many the model has.
        widths: in and out of the model's projections, by their last names; others are not looked at.
    """
    for name, tensor in tensors.items():
        if (layer := LAYER.search(name)) and int(layer[1]) >= layers:
            return f"{name} is of layer {layer[1]}, and there are {layers}"
        match = LORA_TENSOR.search(name)
        if match and match["module"] in widths:
            into, out = widths[match["module"]]
            wanted = (rank, into) if match["half"] == "A" else (out, rank)
            if tensor.shape != wanted:
                return f"{name} is {list(tensor.shape)}, not {list(wanted)}"
    return None
