"""Attention backends for paired rows, and what such a backend does beyond SGLang's AttentionBackend interface.

Decode: `forward_decode` gets a `layer` with 2H query heads, q [B, 2H * d] joined by kernels/paired/heads.py, and k and
v [B, Hkv, d], the encoder's, which it writes; `forward_batch.paired` is true. Its metadata are those of an ordinary
decode of B requests. The same backend serves unpaired batches, whose layers have H heads, and lack that attribute;
either may be captured in a CUDA graph. A backend that joins the queries by itself has `forward_pairs`, which gets the
rows as they lie, q [2B, H * d], k and v [2B, Hkv, d], for each layer that its `serves(layer, q)` accepts.

Extend: `forward_extend` gets the encoder rows as ever. The decoder rows are a second extend batch over the same pool
(attention.py, Suffixes), with k and v given and save_kv_cache false. Where planning is state of the backend, one object
cannot hold both plans: it then has an attribute `suffixes`, a backend for these alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from descant.sglang_ext.active import active_scheme


def _triton(model_runner: Any) -> Any:
    from descant.sglang_ext.attention_backends.triton import PairedTritonBackend

    return PairedTritonBackend(model_runner)


def _flashinfer(model_runner: Any) -> Any:
    from descant.sglang_ext.attention_backends.flashinfer import PairedFlashInferBackend

    return PairedFlashInferBackend(model_runner)


# By the name that --attention-backend takes. torch_native and the CPU's own (cpu/attention.py) plan nothing, and are
# built as ever.
PAIRED_BACKENDS: dict[str, Callable[[Any], Any]] = {"triton": _triton, "flashinfer": _flashinfer}


def build_backend(original: Callable[..., Any], *, model_runner: Any, backend_str: str, **kwargs: Any) -> Any:
    """Around SGLang's choice of an attention backend by name: where rows are paired, one that can serve them."""
    if active_scheme().pairs_rows and backend_str in PAIRED_BACKENDS:
        return PAIRED_BACKENDS[backend_str](model_runner)
    return original(model_runner=model_runner, backend_str=backend_str, **kwargs)


def suffix_backend(backend: Any) -> Any:
    """The AttentionBackend that attends for an extend batch's decoder rows: `backend.suffixes`, or else `backend`."""
    return getattr(backend, "suffixes", backend)
