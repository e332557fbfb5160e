"""`python -m interpreted_server ...`: an SGLang server whose Triton kernels run in Triton's interpreter, on the CPU.

What a machine with a GPU would compile, this one interprets: attention and LoRA take the very paths that they take on
CUDA, CUDA graphs apart. Workers are spawned, and import this module before anything else, as SGLang's own entry point.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any

os.environ["TRITON_INTERPRET"] = "1"  # before the first import of triton

import torch
from sglang.srt.platforms import current_platform  # noqa: F401  (first: it loads our platform as a server does)

from descant.sglang_ext import server_args


def unpinned(original: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    @functools.wraps(original)
    def factory(*args: Any, pin_memory: bool = False, **kwargs: Any) -> torch.Tensor:
        return original(*args, **kwargs)

    return factory


# Pinned memory, which the Triton backends of LoRA ask for, needs an accelerator.
for name in ("tensor", "empty", "zeros", "arange"):
    setattr(torch, name, unpinned(getattr(torch, name)))

server_args.ATTENTION_BACKENDS["cpu"] += ("triton",)

if __name__ == "__main__":
    import runpy

    runpy.run_module("sglang.launch_server", run_name="__main__")
