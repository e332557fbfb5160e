"""The same turns again, on another server: what they would have cost there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from descant.runtime.client import Client
from descant.workflows.state import TurnRecord, record


def replay(client: Client, state: Mapping[str, Any]) -> list[TurnRecord]:
    """Send the requests of a run again, in their order, to another server, as if it gave the recorded answers.

    Each request is the recorded one, but for a single new token: its prompt, cached tokens and time to first token are
    what the other server would show. Then the recorded answer is put into the cache under the same adapter, by a
    prefill of what decoding it would have left there, because another scheme's own answer may differ.

    Args:
        state: of a run whose trajectory only grew, without parallel branches.

    Returns:
        The measured turns, with one output token each.
    """
    measured = []
    for turn in (turn for step in state["steps"] for turn in step["turns"]):
        prompt, adapter = state["ids"][: turn["prompt_tokens"]], turn["adapter"]
        one = client.generate(prompt, adapter=adapter, sampling_params={**turn["sampling"], "max_new_tokens": 1})
        measured.append(record(one, turn["agent"]))
        decoded = turn["output_ids"][:-1]  # the last sampled token was not processed
        if decoded:
            client.generate(
                [*prompt, *decoded], adapter=adapter, sampling_params={"max_new_tokens": 1, "temperature": 0}
            )
    return measured
