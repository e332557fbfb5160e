"""More adapters than fit a batch, and more tokens than fit the pool."""

from __future__ import annotations

from functools import partial

import check
import tiny
from deployments import on
from engine import Server, together
from reference import Reference

pytestmark = on("mistral")


def test_more_adapters_than_slots(server: Server, ours: Reference) -> None:
    """Six adapters, each of another rank, and the base model, all at once, twice."""
    agents = [None, *tiny.ADAPTERS] * 2
    prompts = [tiny.random_tokens(15 + i, seed=700 + i) for i in range(len(agents))]
    responses = together([partial(server.generate, p, a, new_tokens=12) for p, a in zip(prompts, agents, strict=True)])
    for prompt, agent, response in zip(prompts, agents, responses, strict=True):
        check.output_is_exact(ours, prompt, agent, response)


def test_retraction(server: Server, ours: Reference) -> None:
    """Generations outgrow the pool; those thrown back start again where they stopped, with the same result.

    The scheduler keeps room for all of a request that ignores the end token, so these do not, and some meet it.
    """
    agents = ["plan", None, "wide", "plan", None, "act", "plan", "reflect", None, "plan", "act", None]
    prompts = [tiny.random_tokens(20 + i, seed=800 + i) for i in range(len(agents))]
    responses = together(
        [
            partial(server.generate, prompt, agent, new_tokens=180, sampling={"ignore_eos": False})
            for prompt, agent in zip(prompts, agents, strict=True)
        ]
    )
    for prompt, agent, response in zip(prompts, agents, responses, strict=True):
        assert response["meta_info"]["finish_reason"]["type"] in ("length", "stop")
        check.output_is_exact(ours, prompt, agent, response)
    retracted = {a for a, r in zip(agents, responses, strict=True) if r["meta_info"]["num_retractions"] > 0}
    assert retracted - {None}, "no agent's request was retracted: the pool was never short"


def test_eviction(server: Server, ours: Reference) -> None:
    """Far more text than the pool holds, in turns: what was evicted is computed again, what stayed is reused."""
    texts = [tiny.random_tokens(200, seed=900 + i) for i in range(5)]
    for turn in range(15):
        text, agent = texts[turn % 5], list(tiny.ADAPTERS)[turn % 4]
        check.output_is_exact(ours, text, agent, server.generate(text, agent))
