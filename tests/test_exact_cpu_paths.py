"""ICaRus on each way that the CPU platform computes; the other exactness tests run on its default, compiled operators.

The data type in which agents are served there by default, bfloat16, has 8 bits: its log-probabilities are held to 0.3
(Transformers' own, of this model in bfloat16 against float32, differ by up to 0.25).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import check
import engine
import pytest
import tiny
from reference import Reference

PATHS: dict[str, tuple[str, dict[str, Any]]] = {
    "plain operators": ("qwen2", {"env": {"DESCANT_CPU_OPERATORS": "plain"}}),
    "upstream's attention": ("qwen3", {"attention_backend": "torch_native"}),
    "named by the user": ("llama", {"attention_backend": "descant_cpu", "max_running_requests": 40}),
}
SHARED = tiny.random_tokens(37, seed=41)


@pytest.fixture(params=PATHS)
def path(
    request: pytest.FixtureRequest,
    serve: Callable[..., engine.Server],
    checkpoint: Callable[[str], tiny.Checkpoint],
    reference: Callable[[str], Reference],
) -> tuple[engine.Server, Reference]:
    family, args = PATHS[request.param]
    return serve(checkpoint(family), kv_sharing="icarus", **args), reference(family)


def test_agents_share_and_are_exact(path: tuple[engine.Server, Reference]) -> None:
    server, ours = path
    first = server.generate(SHARED, "plan", new_tokens=6)
    check.output_is_exact(ours, SHARED, "plan", first)
    prompt = [*SHARED, *first["output_ids"], 7, 8, 9]
    agents = ["act", None, "reflect", "plan"]
    for agent, response in zip(
        agents,
        engine.together([partial(server.generate, prompt, agent, new_tokens=6) for agent in agents]),
        strict=True,
    ):
        check.output_is_exact(ours, prompt, agent, response)
        assert response["meta_info"]["cached_tokens"] >= len(SHARED) + 5
    response = server.generate(prompt, "act", logprob_start_len=3)
    check.input_is_exact(ours, prompt, "act", response, start=3)


def test_decode_steps_of_every_batch_size_are_recorded_once_and_exact(
    serve: Callable[..., engine.Server],
    checkpoint: Callable[[str], tiny.Checkpoint],
    reference: Callable[[str], Reference],
) -> None:
    """Batches that grow and shrink, of adapters alone, base alone, and both; then the same again, all replayed."""
    family, args = PATHS["named by the user"]
    server, ours = serve(checkpoint(family), kv_sharing="icarus", **args), reference(family)
    for _ in range(2):
        for agents in (["plan"] * 3, [None] * 3, ["act", None, "plan", "reflect", None, "act", "plan"]):
            prompts = [[*SHARED, seed] for seed in range(len(agents))]
            calls = [
                partial(server.generate, prompt, agent, new_tokens=4 + 3 * index)
                for index, (prompt, agent) in enumerate(zip(prompts, agents, strict=True))
            ]
            for prompt, agent, response in zip(prompts, agents, engine.together(calls), strict=True):
                check.output_is_exact(ours, prompt, agent, response)
    assert "run unrecorded" not in server.log.read_text()


def test_bfloat16_stays_near(
    serve: Callable[..., engine.Server],
    checkpoint: Callable[[str], tiny.Checkpoint],
    reference: Callable[[str], Reference],
) -> None:
    """The default data type, which the checkpoint's own, float32, gives way to."""
    server, ours = serve(checkpoint("llama"), kv_sharing="icarus", dtype="auto"), reference("llama")
    assert server.info()["dtype"] == "bfloat16"
    for agent in ("plan", None, "act"):
        response = server.generate(SHARED, agent, new_tokens=8)
        wanted = check.expected(ours, [*SHARED, *response["output_ids"]], agent)[len(SHARED) - 1 : -1]
        for (reported, token, _), row in zip(response["meta_info"]["output_token_logprobs"], wanted, strict=True):
            assert reported == pytest.approx(row.log_softmax(-1)[token].item(), abs=0.3)
