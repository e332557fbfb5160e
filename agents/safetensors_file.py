"""Reading a safetensors file's table of contents, and whether a tensor in it is all zero, without torch.

Format: 8 bytes, little-endian, the length of a JSON header; the header; the tensors' bytes
(huggingface/safetensors, "Format").
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from descant.runtime.errors import DescantError

# Unsigned integers as wide as an element. Shifted left by one they lose the sign bit: minus zero is zero too.
BITS = {"F64": "<u8", "F32": "<u4", "F16": "<u2", "BF16": "<u2", "F8_E4M3": "u1", "F8_E5M2": "u1"}


@dataclass(frozen=True)
class StoredTensor:
    """One entry of the header: dtype as the format spells it, shape, bytes [begin, end) of the file."""

    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


def read_header(file: Path) -> dict[str, StoredTensor]:
    """The tensors in `file` by name.

    Raises:
        DescantError: the file is missing, is no safetensors file, or is cut short.
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
        raise DescantError(f"{file} cannot be read ({error.strerror}): check the path.") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DescantError(f"{file} is no safetensors file ({error}): save the adapter again.") from error
    if any(tensor.end > size for tensor in tensors.values()):
        raise DescantError(f"{file} is cut short at {size} bytes: copy or save the adapter again.")
    return tensors


def is_zero(file: Path, tensor: StoredTensor) -> bool:
    """Whether every element is zero. A dtype that cannot be told counts as not zero."""
    if tensor.dtype not in BITS:
        return tensor.begin == tensor.end
    bits = np.dtype(BITS[tensor.dtype])
    elements = np.fromfile(file, dtype=bits, count=(tensor.end - tensor.begin) // bits.itemsize, offset=tensor.begin)
    return not np.any(elements << 1)
