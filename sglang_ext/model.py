"""The paired forward: a loaded model made to compute a plan's rows and to answer from its decoder rows.

The inner model gets the decoder rows' tokens and positions beside its own, and its hidden states come back with each
decoder row's in place of its token's: the shape upstream expects, so that logits, sampling and logprobs need no change.
"""

from __future__ import annotations

import copy
import inspect
from typing import Any

import torch
from sglang.srt.layers.moe.fused_moe_triton.layer import FusedMoE
from sglang.srt.layers.radix_attention import AttentionType, RadixAttention
from sglang.srt.model_loader.utils import resolve_language_model

from descant.sglang_ext.attention import PairedAttention, Suffixes
from descant.sglang_ext.batch import row_batch
from descant.sglang_ext.rows import DecodeRows, ExtendRows
from descant.sglang_ext.schemes import Scheme


def pair_model(model: torch.nn.Module, num_layers: int, scheme: Scheme) -> None:
    """Give `model`, in place, a forward that follows `scheme.plan`.

    Args:
        num_layers: the model's decoder layers; each must hold one plain RadixAttention.

    Raises:
        ValueError: the model is of a kind whose rows cannot be paired; the sentence names it.
    """
    if reason := unsupported_model(model, num_layers):
        raise ValueError(
            f"--kv-sharing {scheme.name} cannot serve {type(model).__name__}: {reason}; "
            f"serve it with --kv-sharing nonshared, or take a dense decoder-only model (Llama, Qwen, Mistral, ...)."
        )
    inner = resolve_language_model(model)
    for module in inner.modules():
        if isinstance(module, RadixAttention):
            module.forward = PairedAttention(module)
    inner.forward = PairedForward(inner, scheme)


def unsupported_model(model: torch.nn.Module, num_layers: int) -> str | None:
    """Why rows of this model cannot be paired, or None."""
    inner = getattr(model, "model", None)
    if not isinstance(inner, torch.nn.Module):
        return "it has no inner `model` between its embeddings and its head"
    if not {"input_ids", "positions", "forward_batch"} <= set(inspect.signature(inner.forward).parameters):
        return "its inner model takes other arguments than input_ids, positions and forward_batch"
    if any(isinstance(module, FusedMoE) for module in model.modules()):
        return "it is a mixture of experts"
    attentions = [module for module in model.modules() if isinstance(module, RadixAttention)]
    if len(attentions) != num_layers:
        return f"{len(attentions)} of its {num_layers} layers have plain attention"
    for layer in attentions:
        if reason := _unsupported_attention(layer):
            return f"its attention {reason}"
    return None


def _unsupported_attention(layer: RadixAttention) -> str | None:
    if type(layer) is not RadixAttention:
        return f"is a {type(layer).__name__}"
    if layer.attn_type is not AttentionType.DECODER or layer.is_cross_attention:
        return "is not causal self-attention"
    if layer.sliding_window_size > -1:
        return "has a sliding window"
    if layer.logit_cap:
        return "caps its logits"
    if layer.qk_head_dim != layer.v_head_dim:
        return "has heads of two sizes (MLA)"
    if layer.xai_temperature_len > 0 or layer.use_irope:
        return "scales by position"
    return None


class PairedForward:
    """What takes the place of the inner model's `forward`. A batch whose plan is None goes straight through."""

    def __init__(self, inner: torch.nn.Module, scheme: Scheme) -> None:
        self.original = inner.forward
        self.signature = inspect.signature(inner.forward)
        self.scheme = scheme

    def __call__(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        """Hidden states [n, hidden] of the batch's n tokens, taken from decoder rows where there are any."""
        call = self.signature.bind(*args, **kwargs)
        forward_batch = call.arguments["forward_batch"]
        plan = self.scheme.plan(row_batch(forward_batch))
        if plan is None:
            return self.original(*args, **kwargs)
        if call.arguments.get("input_embeds") is not None:
            raise ValueError(f"--kv-sharing {self.scheme.name} cannot serve input embeddings; send token ids.")
        return self._decode(call) if isinstance(plan, DecodeRows) else self._extend(call, plan)

    def _decode(self, call: inspect.BoundArguments) -> torch.Tensor:
        """Shapes alone decide what runs, so that a CUDA graph can hold it."""
        input_ids, positions = call.arguments["input_ids"], call.arguments["positions"]
        view = copy.copy(call.arguments["forward_batch"])
        view.input_ids = twice(input_ids)
        view.positions = twice(positions)
        return self._rows(call, view)[1::2].contiguous()

    def _extend(self, call: inspect.BoundArguments, plan: ExtendRows) -> torch.Tensor:
        input_ids, positions = call.arguments["input_ids"], call.arguments["positions"]
        view = copy.copy(call.arguments["forward_batch"])
        view.suffixes = suffixes = Suffixes(plan, view, input_ids.device)
        view.input_ids = torch.cat([input_ids, input_ids[suffixes.tokens]])
        view.positions = torch.cat([positions, positions[..., suffixes.tokens]], dim=-1)
        hidden = self._rows(call, view)
        answers = hidden[: plan.encoder_rows]
        answers[suffixes.tokens] = hidden[plan.encoder_rows :]
        return answers

    def _rows(self, call: inspect.BoundArguments, view: Any) -> torch.Tensor:
        """Hidden states of all rows. `view` is a copy: what upstream does with its batch afterwards must see n rows."""
        view.paired = True
        call.arguments.update(input_ids=view.input_ids, positions=view.positions, forward_batch=view)
        hidden = self.original(*call.args, **call.kwargs)
        if not isinstance(hidden, torch.Tensor):
            raise TypeError(f"{type(hidden).__name__} instead of hidden states came from the inner model.")
        return hidden


def twice(tensor: torch.Tensor) -> torch.Tensor:
    """[..., B] -> [..., 2B], each element beside its copy; repeat_interleave takes 0.2 ms for this on the CPU."""
    return tensor.unsqueeze(-1).expand(*tensor.shape, 2).flatten(-2)
