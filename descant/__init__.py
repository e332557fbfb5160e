"""Descant: many LoRA agents on one shared KV cache, on SGLang."""

from descant._version import __version__

__all__ = ["__version__"]
