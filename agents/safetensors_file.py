"""Whether a tensor in a safetensors file is all zero, without torch."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from descant.sglang_ext.schemes.adapter_files import StoredTensor

# Unsigned integers as wide as an element. Shifted left by one they lose the sign bit: minus zero is zero too.
BITS = {"F64": "<u8", "F32": "<u4", "F16": "<u2", "BF16": "<u2", "F8_E4M3": "u1", "F8_E5M2": "u1"}


def is_zero(file: Path, tensor: StoredTensor) -> bool:
    """Whether every element is zero. A dtype that cannot be told counts as not zero."""
    if tensor.dtype not in BITS:
        return tensor.begin == tensor.end
    bits = np.dtype(BITS[tensor.dtype])
    elements = np.fromfile(file, dtype=bits, count=(tensor.end - tensor.begin) // bits.itemsize, offset=tensor.begin)
    return not np.any(elements << 1)
