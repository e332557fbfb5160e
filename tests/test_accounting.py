"""The ledger: who wrote each slot, who read it, and where the numbers show."""

from __future__ import annotations

import re
from types import SimpleNamespace

import pytest
import tiny
import torch
from deployments import on
from engine import Server

from descant.sglang_ext.ledger import Ledger


def _request(agent: str | None, prompt: int, retracted: bool = False) -> SimpleNamespace:
    return SimpleNamespace(agent=agent, origin_input_ids=[0] * prompt, retracted_stain=retracted)


def _cross(server: Server, tokens: list[int], adapter: str | None) -> tuple[int, int]:
    meta = server.generate(tokens, adapter, new_tokens=1)["meta_info"]
    return meta["cached_tokens"], meta["cached_tokens_details"]["cross_agent"]


@on("llama")
def test_cached_tokens_are_booked_to_those_who_wrote_them(server: Server) -> None:
    a, b, c = (tiny.random_tokens(30, seed) for seed in (1, 2, 3))
    before = server.info()["internal_states"][0]["kv_sharing_totals"]
    assert _cross(server, a, "plan") == (0, 0)
    assert _cross(server, a + b, "plan") == (30, 0)  # its own
    assert _cross(server, a + b + c, "act") == (60, 60)  # all plan's
    assert _cross(server, a + b + c, "plan") == (89, 29)  # act's part, short of the one token always computed
    assert _cross(server, a + b + c, None) == (89, 89)
    totals = server.info()["internal_states"][0]["kv_sharing_totals"]
    grown = {key: totals[key] - before[key] for key in ("prompt_tokens", "cached_tokens", "cross_agent_tokens")}
    assert grown == {"prompt_tokens": 30 + 60 + 90 + 90 + 90, "cached_tokens": 268, "cross_agent_tokens": 178}
    pairs = {(row["writer"], row["reader"]): row["tokens"] for row in totals["by_writer_reader"]}
    assert pairs["plan", "act"] >= 60
    assert pairs["act", "plan"] >= 29
    assert totals["cross_agent_share"] == pytest.approx(totals["cross_agent_tokens"] / totals["prompt_tokens"])


@on("llama")
def test_what_an_agent_says_is_its_own_writing(server: Server) -> None:
    prompt = tiny.random_tokens(20, 4)
    said = server.generate(prompt, "plan", new_tokens=10)["output_ids"]
    # The last token was sampled and never processed; the one before the end of act's prompt is always computed.
    assert _cross(server, [*prompt, *said, 5, 6], "act") == (29, 29)
    assert _cross(server, [*prompt, *said, 5, 6], "plan") == (31, 2)


@on("llama")
def test_a_reused_slot_has_its_new_writer(server: Server) -> None:
    tokens = tiny.random_tokens(25, 5)
    assert _cross(server, tokens, "plan") == (0, 0)
    server.flush()
    assert _cross(server, tokens, "act") == (0, 0)
    assert _cross(server, tokens, "act") == (24, 0)
    assert _cross(server, tokens, "reflect") == (24, 24)


@on("llama")
def test_prometheus_has_totals_by_writer_and_reader(server: Server) -> None:
    tokens = tiny.random_tokens(40, 6)
    _cross(server, tokens, "plan")
    _cross(server, tokens, "reflect")
    totals = server.info()["internal_states"][0]["kv_sharing_totals"]
    text = server.http.get("/metrics/", follow_redirects=True).text
    series = {
        (match["writer"], match["reader"]): float(match["value"])
        for match in re.finditer(
            r'^descant:cached_tokens_total\{reader="(?P<reader>\w+)",writer="(?P<writer>\w+)"\} (?P<value>\S+)',
            text,
            re.M,
        )
    }
    assert series == {(row["writer"], row["reader"]): row["tokens"] for row in totals["by_writer_reader"]}
    prompts = re.findall(r'^descant:prompt_tokens_total\{reader="\w+"\} (\S+)', text, re.M)
    assert sum(map(float, prompts)) == totals["prompt_tokens"]
    (share,) = re.findall(r"^descant:cross_agent_share(?:\{[^}]*\})? (\S+)", text, re.M)
    assert float(share) == pytest.approx(totals["cross_agent_share"])


@on("llama")
def test_the_server_says_its_scheme(server: Server) -> None:
    assert server.info()["kv_sharing"] == "icarus"


def test_a_retracted_requests_second_admission_is_no_read() -> None:
    ledger = Ledger(8, "cpu")
    ledger.wrote(_request("plan", 4), torch.tensor([1, 2, 3]))
    reader = _request("act", 4, retracted=True)
    ledger.reads(reader, torch.tensor([1, 2, 3]))
    assert ledger.settle(reader) == 0
    fresh = _request("act", 4)
    ledger.reads(fresh, torch.tensor([0, 1, 2, 3]))
    assert ledger.settle(fresh) == 4  # three of plan's, one of the base model's
    assert ledger.settle(fresh) == 4  # booked once
    assert ledger.totals()["cross_agent_tokens"] == 4
