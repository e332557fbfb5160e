"""`fullshared`, the baseline: adapters read each other's KV as it is, at the price of exactness."""

from __future__ import annotations

from collections.abc import Callable

import check
import pytest
import tiny
from engine import Server
from reference import Reference

PROMPT = tiny.random_tokens(40, seed=14)


@pytest.fixture
def server(serve: Callable[..., Server], checkpoint: Callable[[str], tiny.Checkpoint]) -> Server:
    return serve(checkpoint("llama"), kv_sharing="fullshared")


@pytest.fixture
def ours(reference: Callable[[str], Reference]) -> Reference:
    return reference("llama")


@pytest.mark.parametrize("agent", [None, *tiny.AGENTS])
def test_the_first_reader_is_ordinary_lora(server: Server, ours: Reference, agent: str | None) -> None:
    """On an empty cache it writes, and reads, its own KV."""
    response = server.generate(PROMPT, agent, new_tokens=24)
    check.output_is_exact(ours, PROMPT, agent, response, scheme="nonshared")


def test_the_second_reader_shares_and_pays_for_it(server: Server, ours: Reference) -> None:
    server.generate(PROMPT, "plan")
    response = server.generate(PROMPT, "act", new_tokens=1)
    assert response["meta_info"]["cached_tokens"] == len(PROMPT) - 1

    own = ours.conventional(PROMPT, "act")[-1]
    [[reported, token, *_]] = response["meta_info"]["output_token_logprobs"]
    assert abs(reported - own[token].item()) > 50 * check.TOLERANCE, "it read another adapter's KV, and nothing changed"


def test_the_cost_is_announced(server: Server) -> None:
    """A warning at start says that this scheme costs accuracy."""
    warnings = [line for line in server.log.read_text().splitlines() if "fullshared" in line and "accuracy" in line]
    assert warnings
