"""The portable CPU platform: the same install serves on a machine without an accelerator.

PyPI's SGLang ships no CPU kernels, and its own CPU mode needs them. This out-of-tree platform runs the native torch
code instead. SGLang asks `activate` in every process; on a machine with an accelerator it stays out of the way.
"""

from __future__ import annotations

import os
from typing import Any

import torch
from sglang.srt.platforms.cpu import CpuDeviceMixin
from sglang.srt.platforms.device_mixin import PlatformEnum
from sglang.srt.platforms.interface import SRTPlatform

from descant.kernels.cpu import operators
from descant.sglang_ext.help import offer_flags

ATTENTION_BACKEND = "descant_cpu"


def activate() -> str | None:
    """Entry point `sglang.srt.platforms`: the platform's dotted name, or None where it has no place.

    SGLang's own CPU mode (SGLANG_USE_CPU_ENGINE=1), where a user asked for it, wins. SGLang asks very early, before
    `sglang serve --help` is answered: that is also the moment to offer our flags there.
    """
    offer_flags()
    if os.environ.get("SGLANG_USE_CPU_ENGINE", "0") == "1":
        return None
    if torch.accelerator.current_accelerator(check_available=True) is not None:
        return None
    return f"{CpuPlatform.__module__}.{CpuPlatform.__qualname__}"


class CpuPlatform(CpuDeviceMixin, SRTPlatform):
    """Native torch on the CPU. Out-of-tree, so that no in-tree branch expects CPU kernels."""

    _enum = PlatformEnum.OOT

    def get_device(self, device_id: int = 0) -> Any:
        # A string: SGLang splits it at ":".
        return "cpu"

    def is_pin_memory_available(self, device: Any = None) -> bool:
        return False

    def get_default_attention_backend(self) -> str:
        return ATTENTION_BACKEND

    def get_compile_backend(self, mode: str | None = None) -> str:
        return "eager"

    def apply_server_args_defaults(self, server_args: Any) -> None:
        """What upstream would choose for a GPU and this platform cannot run; a user's own choice stands."""
        server_args.device = "cpu"
        if server_args.dtype == "auto":
            # Upstream would take float16 for many checkpoints. The compiled operators read bfloat16 at half the memory
            # traffic; torch's own are several times slower in it than in float32 (docs/performance.md).
            server_args.dtype = "bfloat16" if operators().COMPILED else "float32"
        if server_args.attention_backend in (None, "intel_amx"):  # upstream's default, which needs its CPU kernels
            server_args.attention_backend = ATTENTION_BACKEND
        if server_args.lora_backend == "csgmv":  # upstream's default, a Triton backend
            server_args.lora_backend = "torch_native"
        if server_args.sampling_backend in (None, "flashinfer"):
            server_args.sampling_backend = "pytorch"
        # Nothing runs beside the CPU: overlapping host work with it only adds threads that compete for its cores.
        server_args.disable_overlap_schedule = True
        # An idle scheduler polls without a pause (measured: 101 % of a core), which here is a core of the computation.
        server_args.sleep_on_idle = True

    def init_backend(self) -> None:
        """Each worker, once."""
        from descant.sglang_ext.cpu.attention import register_cpu_attention

        register_cpu_attention()
        unpin_lora_code()
        if operators().COMPILED:
            from descant.sglang_ext.cpu.layers import register_layers

            register_layers(self.get_dispatch_key_name())

    def post_load_model(self, model: torch.nn.Module) -> None:
        """The loaded model's layers, before adapters wrap them."""
        from descant.sglang_ext.cpu.layers import install_linear
        from descant.sglang_ext.cpu.recorded import record_decode

        install_linear(model)
        if operators().COMPILED:
            record_decode(model)


def unpin_lora_code() -> None:
    """Make the LoRA code's pinned-memory requests, which no machine without an accelerator can serve, ordinary ones."""
    import sglang.srt.lora.layers as lora_layers

    from descant.sglang_ext.cpu.lora import register_cpu_lora

    torch.Tensor.pin_memory = lambda self, *args, **kwargs: self
    lora_layers.torch = _UnpinnedTorch()
    register_cpu_lora()


class _UnpinnedTorch:
    """The torch module as sglang.srt.lora.layers sees it, its `tensor` without `pin_memory`."""

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)

    @staticmethod
    def tensor(*args: Any, pin_memory: bool = False, **kwargs: Any) -> torch.Tensor:
        return torch.tensor(*args, **kwargs)
