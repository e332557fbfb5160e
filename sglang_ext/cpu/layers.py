"""SGLang's dense layers, norms, activations and rotary embeddings on the operators of kernels/cpu/."""

from __future__ import annotations

from typing import Any

import torch
from sglang.kernels.fused_op import BaseFusedOp
from sglang.srt.layers.activation import SiluAndMul
from sglang.srt.layers.layernorm import RMSNorm
from sglang.srt.layers.quantization.unquant import UnquantizedEmbeddingMethod, UnquantizedLinearMethod
from sglang.srt.layers.rotary_embedding.base import RotaryEmbedding

from descant.kernels.cpu import operators

DTYPES = (torch.float32, torch.bfloat16)  # of the compiled operators


class CpuLinearMethod(UnquantizedLinearMethod):
    """An unquantized linear layer."""

    def apply(self, layer: Any, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        return _linear(layer, x, bias)


class CpuEmbeddingMethod(UnquantizedEmbeddingMethod):
    """An unquantized head, and the embedding that may be tied to it."""

    def apply(self, layer: Any, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        return _linear(layer, x, bias)


def _linear(layer: Any, x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    rows = x.reshape(-1, x.shape[-1])
    return operators().linear(rows, layer.weight, bias, None, None, None, None, None, []).view(*x.shape[:-1], -1)


def install_linear(model: torch.nn.Module) -> None:
    """Give the unquantized layers of a loaded model, in place, the methods above."""
    methods = {UnquantizedLinearMethod: CpuLinearMethod(), UnquantizedEmbeddingMethod: CpuEmbeddingMethod()}
    for module in model.modules():
        method = methods.get(type(getattr(module, "quant_method", None)))
        if method is not None and module.weight.dtype in DTYPES:
            module.quant_method = method


def rms_norm(
    self: RMSNorm,
    x: torch.Tensor,
    residual: torch.Tensor | None = None,
    post_residual_addition: torch.Tensor | None = None,
    quant_linear: Any = None,
) -> Any:
    """As RMSNorm.forward_cuda: with a residual, the sum is kept in it, in place."""
    plain = (
        self.variance_size_override is None
        and not (self.cast_x_before_out_mul or self.fp32_residual or self.override_orig_dtype)
        and post_residual_addition is None
        and x.dtype == self.weight.dtype
        and x.dtype in DTYPES
        and (residual is None or (residual.dtype == x.dtype and residual.is_contiguous()))
    )
    if not plain:
        return self.forward_native(x, residual, post_residual_addition)
    out = operators().rms_norm(x, residual, self.weight, self.variance_epsilon)
    return out if residual is None else (out, residual)


def silu_and_mul(self: SiluAndMul, x: torch.Tensor) -> torch.Tensor:
    return operators().silu_mul(x) if x.dtype in DTYPES else self.forward_native(x)


def rotary(
    self: RotaryEmbedding,
    positions: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    offsets: torch.Tensor | None = None,
    fused_set_kv_buffer_arg: Any = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """As upstream's on CUDA: queries and keys turn in place."""
    plain = positions.dim() == 1 and query.dim() == 2 and key.dim() == 2 and query.dtype in DTYPES and offsets is None
    if not plain or fused_set_kv_buffer_arg is not None:
        return self.forward_native(positions, query, key, offsets, fused_set_kv_buffer_arg)
    for rows in (query, key):
        operators().rotate_(rows, positions, self.cos_sin_cache, self.head_size, self.is_neox_style)
    return query, key


def _rotary_classes() -> list[Any]:
    """RotaryEmbedding and every subclass that differs from it in its cache of cosines and sines alone."""
    found: list[Any] = [RotaryEmbedding]
    for parent in found:
        found += [kind for kind in parent.__subclasses__() if kind not in found]
    return [kind for kind in found if kind.forward_native is RotaryEmbedding.forward_native]


def register_layers(key: str) -> None:
    """Let these forwards serve, in this process, a platform whose dispatch key is `key`."""
    BaseFusedOp.register_oot_forward(RMSNorm, rms_norm, key)
    BaseFusedOp.register_oot_forward(SiluAndMul, silu_and_mul, key)
    for kind in _rotary_classes():
        BaseFusedOp.register_oot_forward(kind, rotary, key)
