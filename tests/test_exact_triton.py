"""ICaRus on a whole server with SGLang's Triton backends, attention and LoRA, their kernels interpreted on the CPU.

These are the paths that a server on CUDA takes, but for graphs; a token takes seconds, so there are few.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import check
import engine
import pytest
import tiny
from reference import Reference

SHARED = tiny.random_tokens(12, seed=21)


@pytest.mark.parametrize("lora_backend", ["csgmv", "triton"])
def test_agents_share_and_are_exact(
    serve: Callable[..., Any],
    checkpoint: Callable[[str], tiny.Checkpoint],
    reference: Callable[[str], Reference],
    lora_backend: str,
) -> None:
    server = serve(
        checkpoint("llama"),
        env={"PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])},
        module="interpreted_server",
        kv_sharing="icarus",
        attention_backend="triton",
        lora_backend=lora_backend,
    )
    ours = reference("llama")
    agents = ["plan", None, "act"]
    responses = engine.together([partial(server.generate, SHARED, agent, new_tokens=3) for agent in agents])
    for agent, response in zip(agents, responses, strict=True):
        check.output_is_exact(ours, SHARED, agent, response)

    start = len(SHARED) - 4
    scored = server.generate(SHARED, "reflect", new_tokens=1, logprob_start_len=start)
    assert scored["meta_info"]["cached_tokens"] == start
    check.input_is_exact(ours, SHARED, "reflect", scored, start=start)
    check.output_is_exact(ours, SHARED, "reflect", scored)
