"""Paired decode attention: encoder and decoder queries, joined, in one call over the shared KV (ICaRus)."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec

import torch

from descant.kernels.paired.base import PairedDecode, PairedShape
from descant.kernels.paired.heads import join_rows, split_rows

__all__ = ["PairedDecode", "PairedShape", "installed", "join_rows", "paired_decode", "split_rows"]


def _reference() -> type[PairedDecode]:
    from descant.kernels.paired.reference import ReferenceDecode

    return ReferenceDecode


def _torch_cpu() -> type[PairedDecode]:
    from descant.kernels.paired.torch_cpu import TorchCpuDecode

    return TorchCpuDecode


def _triton() -> type[PairedDecode]:
    from descant.kernels.paired.triton import TritonDecode

    return TritonDecode


def _flashinfer() -> type[PairedDecode]:
    from descant.kernels.paired.flashinfer import FlashInferDecode

    return FlashInferDecode


# An implementation's imports are paid only where it is chosen.
IMPLEMENTATIONS: dict[str, Callable[[], type[PairedDecode]]] = {
    "reference": _reference,
    "torch_cpu": _torch_cpu,
    "triton": _triton,
    "flashinfer": _flashinfer,
}


def paired_decode(name: str, shape: PairedShape, device: torch.device) -> PairedDecode:
    """The implementation `name`, for one attention shape on one device.

    Raises:
        ValueError: the name is unknown, or the implementation cannot serve the shape or the device; one sentence.
    """
    if name not in IMPLEMENTATIONS:
        raise ValueError(f"Paired decode has no implementation '{name}'; choose one of {', '.join(IMPLEMENTATIONS)}.")
    return IMPLEMENTATIONS[name]()(shape, device)


def installed() -> list[str]:
    """The implementations for a GPU whose package, of the same name, is installed."""
    return [name for name in ("triton", "flashinfer") if find_spec(name)]
