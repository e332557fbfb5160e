"""Transformers with PEFT in a process of its own: bench/cpu.py stays without torch, idle while a server is measured."""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any

from cpu_report import BYTES

STREAMED = 256 * 1024 * 1024  # bytes; more than any processor's last cache
PROMPT = 32  # tokens in front of the decoded ones


def cores() -> int:
    return len(os.sched_getaffinity(0))


class Child:
    """Calls the functions below in a process that holds the models; `about` waits until it does."""

    def __init__(self, model: Path, adapter: Path) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        # Whatever ends this process closes the pipe, which ends the child.
        context.Process(target=_serve_child, args=(theirs, model, adapter), daemon=True).start()
        theirs.close()

    @cached_property
    def about(self) -> dict[str, Any]:
        """What only a process with torch can say of the run."""
        said: dict[str, Any] = self.pipe.recv()
        return said

    def __call__(self, name: str, *args: Any) -> float:
        self.pipe.send((name, args))
        seconds: float = self.pipe.recv()
        return seconds


def _serve_child(pipe: Any, model: Path, adapter: Path) -> None:
    import torch
    import transformers
    from peft import PeftModel

    from descant.kernels.cpu import operators

    about = {
        "operators": "compiled" if operators().COMPILED else "plain: there is no compiler",
        "server threads": torch.get_num_threads(),  # torch's default, which SGLang leaves on the CPU
        "Transformers threads": cores(),
    }
    torch.set_num_threads(cores())
    transformers.utils.logging.disable_progress_bar()
    models = {}
    for dtype in BYTES:
        base = transformers.AutoModelForCausalLM.from_pretrained(model, dtype=dtype)
        about["parameters"] = sum(it.numel() for it in base.parameters())  # a tied head comes once
        models[dtype] = PeftModel.from_pretrained(base, adapter).eval()
    calls: dict[str, Callable[..., float]] = {
        "stream": lambda: _stream_rate(),
        "step": lambda dtype, tokens: _transformers_step(models[dtype], tokens),
        "prefill": lambda dtype, tokens: _transformers_prefill(models[dtype], tokens)[0],
    }
    with torch.inference_mode():
        pipe.send(about)
        while True:
            try:
                name, args = pipe.recv()
            except EOFError:
                return
            pipe.send(calls[name](*args))


def _stream_rate() -> float:
    """Bytes read a second by a sum over a large tensor, the best of several: what the memory can give the cores."""
    import torch

    numbers = torch.ones(STREAMED // 8, dtype=torch.float64)
    times = []
    for _ in range(8):
        start = time.perf_counter()
        numbers.sum()
        times.append(time.perf_counter() - start)
    return STREAMED / min(times)


def _transformers_prefill(model: Any, tokens: int) -> tuple[float, Any]:
    """Seconds of a forward of `tokens` random tokens, and what it gives."""
    import torch

    prompt = torch.randint(100, model.config.vocab_size, (1, tokens))
    start = time.perf_counter()
    out = model(prompt, use_cache=True, logits_to_keep=1)
    return time.perf_counter() - start, out


def _transformers_step(model: Any, tokens: int) -> float:
    """Seconds of a greedy step, on average over `tokens` after a short prompt."""
    out = _transformers_prefill(model, PROMPT)[1]
    start = time.perf_counter()
    for _ in range(tokens):
        token = out.logits[:, -1:].argmax(-1)
        out = model(token, past_key_values=out.past_key_values, use_cache=True, logits_to_keep=1)
    return (time.perf_counter() - start) / tokens
