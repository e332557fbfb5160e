"""The scheme that this process serves under, read from SGLang's published configuration."""

from __future__ import annotations

from sglang.srt.runtime_context import get_lora, get_model

from descant.sglang_ext.fingerprint import fingerprint_of
from descant.sglang_ext.schemes import Scheme, scheme_named


def active_scheme() -> Scheme:
    """The scheme named by --kv-sharing. A program may start one Engine after another, so it is looked up each time."""
    return scheme_named(get_lora().kv_sharing)


def allows_kv_adapters() -> bool:
    """Whether --allow-kv-adapters was given."""
    return bool(get_lora().allow_kv_adapters)


def base_fingerprint() -> str | None:
    """Which base model this process serves; None if that cannot be told."""
    return fingerprint_of(get_model().model_path)
