"""Decode steps of the CPU platform, recorded once for each shape of batch and replayed (kernels/cpu/tape.py)."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Any

import torch
from sglang.srt.lora.layers import BaseLayerWithLoRA
from sglang.srt.model_executor.forward_context import get_attn_backend
from sglang.srt.model_loader.utils import resolve_language_model

from descant.kernels.cpu.tape import Tape, Unrecordable
from descant.sglang_ext.cpu.attention import CpuAttentionBackend
from descant.sglang_ext.cpu.lora import CpuLoRABackend

logger = logging.getLogger(__name__)


def record_decode(model: torch.nn.Module) -> None:
    """Give the inner model of `model`, in place, a forward that records decode steps and replays them."""
    inner = resolve_language_model(model)
    inner.forward = RecordedForward(inner)


class RecordedForward:
    """What takes the place of the inner model's `forward`; all but decode goes straight through."""

    def __init__(self, inner: torch.nn.Module) -> None:
        self.inner = inner
        self.original = inner.forward
        self.__signature__ = inspect.signature(inner.forward)
        self.steps: dict[Any, Callable[..., torch.Tensor] | None] = {}  # None: this shape cannot be recorded

    def __call__(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        """Hidden states [rows, hidden]."""
        call = self.__signature__.bind(*args, **kwargs)
        ids, positions, batch = (call.arguments.pop(name, None) for name in ("input_ids", "positions", "forward_batch"))
        others = [value for value in call.arguments.values() if value is not None]
        layer = self.lora_layer if self.lora_layer is not None and self.lora_layer.lora_active else None
        # Other backends may run kernels of their own, which are no operators, and leave no trace in a recording.
        ours = isinstance(get_attn_backend(), CpuAttentionBackend) and (
            layer is None or isinstance(layer.lora_backend, CpuLoRABackend)
        )
        if ids is None or others or not ours or not batch.forward_mode.is_decode():
            return self.original(*args, **kwargs)
        inputs = [ids, positions, batch.req_pool_indices, batch.seq_lens, batch.out_cache_loc]
        if layer is not None:
            inputs += layer.lora_backend.row_inputs
        shape = (ids.shape, positions.shape, batch.batch_size, layer is not None, getattr(batch, "paired", False))
        if shape not in self.steps:
            return self._record(shape, inputs, lambda: self.original(*args, **kwargs))
        replay = self.steps[shape]
        return self.original(*args, **kwargs) if replay is None else replay(*inputs)

    @cached_property
    def lora_layer(self) -> Any:
        """A layer that adapters wrap, or None; a batch uses all of them, or none. Wrapped before the first forward."""
        return next((module for module in self.inner.modules() if isinstance(module, BaseLayerWithLoRA)), None)

    def _record(self, shape: Any, inputs: list[torch.Tensor], forward: Callable[[], torch.Tensor]) -> torch.Tensor:
        lasting = {tensor.untyped_storage().data_ptr() for tensor in self._lasting_tensors()}
        self.steps[shape] = None
        try:
            tape = Tape(lambda *_: forward(), inputs, lambda tensor: tensor.untyped_storage().data_ptr() in lasting)
        except Unrecordable as reason:
            logger.warning(f"Decode steps of {inputs[0].numel()} rows run unrecorded, and slower: {reason}.")
            return forward()
        self.steps[shape] = tape.replay
        return tape.first

    def _lasting_tensors(self) -> Iterator[torch.Tensor]:
        """Weights, adapters' buffers and the KV pool: at their places for as long as the server runs."""
        for module in self.inner.modules():
            for value in [*vars(module).values(), *module.parameters(recurse=False), *module.buffers(recurse=False)]:
                if isinstance(value, torch.Tensor):
                    yield value
        yield from get_attn_backend().lasting_tensors()
