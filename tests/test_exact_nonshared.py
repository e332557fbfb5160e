"""`nonshared` is SGLang as it is: ordinary LoRA, a namespace for each adapter, the same numbers bit for bit."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import check
import pytest
import tiny
from engine import Server
from reference import Reference

PROMPT = tiny.random_tokens(40, seed=13)
EVERYONE = [None, *tiny.AGENTS]
# Conventional adapters, as SGLang serves them without this plugin: q, k and v together.
ALL_MODULES = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
CONVENTIONAL: Mapping[str, Mapping[str, Any]] = {
    "chat": {"seed": 51, "modules": ALL_MODULES},
    "code": {"seed": 52, "modules": ("q_proj", "v_proj"), "rank": 4},
}


@pytest.fixture(scope="module")
def conventional(
    checkpoint: Callable[[str], tiny.Checkpoint], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("conventional")
    model = checkpoint("llama").model
    return {name: tiny.save_adapter(model, root / name, **spec) for name, spec in CONVENTIONAL.items()}


@pytest.fixture(scope="module")
def ours(checkpoint: Callable[[str], tiny.Checkpoint], conventional: dict[str, Path]) -> Reference:
    return Reference(checkpoint("llama").model, {**checkpoint("llama").adapters, **conventional})


@pytest.fixture
def start(
    serve: Callable[..., Server], checkpoint: Callable[[str], tiny.Checkpoint], conventional: dict[str, Path]
) -> Callable[..., Server]:
    """A server as a user of SGLang starts it today: no `--kv-sharing`, the default."""

    def start(**env: str) -> Server:
        return serve(checkpoint("llama"), adapters=conventional, max_loras_per_batch=6, max_lora_rank=16, env=env)

    return start


@pytest.fixture
def server(start: Callable[..., Server], checkpoint: Callable[[str], tiny.Checkpoint]) -> Iterator[Server]:
    """That server with `AGENTS` loaded too: they update q_proj without k_proj and v_proj, which SGLang alone cannot
    load."""
    server = start()
    for name in tiny.AGENTS:
        answer = server.load_adapter(name, checkpoint("llama").adapters[name])
        assert answer.status_code == 200, answer.text
    yield server
    for name in tiny.AGENTS:
        server.unload_adapter(name)


@pytest.mark.parametrize("agent", [*EVERYONE, *CONVENTIONAL])
def test_ordinary_lora(server: Server, ours: Reference, agent: str | None) -> None:
    response = server.generate(PROMPT, agent, new_tokens=24, logprob_start_len=10)
    check.input_is_exact(ours, PROMPT, agent, response, start=10, scheme="nonshared")
    check.output_is_exact(ours, PROMPT, agent, response, scheme="nonshared")


def test_adapters_share_nothing(server: Server) -> None:
    for agent in EVERYONE:
        assert server.generate(PROMPT, agent)["meta_info"]["cached_tokens"] == 0
        assert server.generate(PROMPT, agent)["meta_info"]["cached_tokens"] == len(PROMPT) - 1


def numbers(server: Server, agents: list[str | None]) -> list[Any]:
    """Tokens and log-probabilities, input and output, greedy, one request at a time, first cold and then cached."""
    answers = [
        server.generate(PROMPT, agent, new_tokens=24, logprob_start_len=start)
        for agent in agents
        for start in (0, 25, -1)
    ]
    return [
        (a["output_ids"], a["meta_info"]["input_token_logprobs"], a["meta_info"]["output_token_logprobs"])
        for a in answers
    ]


def test_bit_for_bit_upstream(start: Callable[..., Server]) -> None:
    """The same engine without this plugin, but on its CPU platform, gives the same numbers, not just close ones."""
    agents = [None, *CONVENTIONAL]
    with_plugin = numbers(start(), agents)
    without_plugin = numbers(start(SGLANG_PLUGINS="descant_cpu"), agents)
    assert with_plugin == without_plugin
