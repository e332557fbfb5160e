"""The variants of the Triton kernels that models need, without a GPU: for ahead-of-time compilation."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from descant.kernels.aot import Variant, specialise
from descant.kernels.paired.shapes import DTYPES, MODELS, Model
from descant.kernels.paired.triton import Partials, launches


@dataclass(frozen=True)
class Needed:
    """A variant, the data type of its queries, and the names of the models whose joined decode runs it."""

    variant: Variant
    dtype: torch.dtype
    models: tuple[str, ...]


def paired_variants(models: tuple[Model, ...] = MODELS, dtypes: tuple[torch.dtype, ...] = DTYPES) -> list[Needed]:
    """Every variant of the split and combine kernels that `models` run with joined heads, each once."""
    names: dict[tuple[Variant, torch.dtype], list[str]] = {}
    for dtype in dtypes:
        for model in models:
            for variant in _variants(model, dtype):
                names.setdefault((variant, dtype), []).append(model.name)
    return [Needed(variant, dtype, tuple(users)) for (variant, dtype), users in names.items()]


def _variants(model: Model, dtype: torch.dtype) -> list[Variant]:
    meta = torch.device("meta")
    shape = model.joined(dtype)
    queries = torch.empty(1, shape.query_heads, shape.head_dim, dtype=dtype, device=meta)
    pool = torch.empty(64, shape.kv_heads, shape.head_dim, dtype=dtype, device=meta)
    starts = torch.empty(2, dtype=torch.int32, device=meta)
    slots = torch.empty(64, dtype=torch.int64, device=meta)
    partials = Partials.allocate(shape, 1, meta)
    made = launches(queries, pool, pool, starts, slots, shape.scaling, partials, queries)
    return [specialise(it.kernel, it.arguments, num_warps=it.num_warps, num_stages=it.num_stages) for it in made]
