"""Every Triton kernel compiles for the GPUs that are served, spills nothing, and fits their shared memory.

No GPU is needed and nothing is launched. `python bench/aot.py` prints what is asserted here.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from descant.kernels.aot import SHARED_MEMORY, resources
from descant.kernels.paired.shapes import MODELS
from descant.kernels.paired.variants import Needed, paired_variants

VARIANTS = paired_variants()


def _name(needed: Needed) -> str:
    dtype = str(needed.dtype).removeprefix("torch.")
    return f"{needed.variant.kernel.__name__}-{needed.models[0]}-{dtype}"


@pytest.mark.parametrize("capability", SHARED_MEMORY, ids=lambda cc: f"sm_{cc}")
@pytest.mark.parametrize("needed", VARIANTS, ids=_name)
def test_it_compiles_without_spills(needed: Needed, capability: int) -> None:
    taken = resources(needed.variant, capability)
    assert taken.spilled == 0
    assert taken.shared <= SHARED_MEMORY[capability]


def test_a_spill_would_be_seen() -> None:
    """Twice the tokens a step in float32 cannot be held in registers."""
    needed = next(it for it in VARIANTS if it.dtype == torch.float32 and it.models[0] == "Llama-3.1-8B")
    constants = dict(needed.variant.constants)
    constants["TOKENS"] *= 2
    assert resources(replace(needed.variant, constants=tuple(constants.items())), 90).spilled > 0


def test_no_model_is_left_out() -> None:
    assert {name for needed in VARIANTS for name in needed.models} == {model.name for model in MODELS}
