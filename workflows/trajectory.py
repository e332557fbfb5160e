"""A trajectory: the one append-only list of token ids that all agents of a workflow read and extend."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from descant.runtime.client import Client, Turn


@dataclass(frozen=True)
class Step:
    """One agent's turn: what was asked, and what came back.

    prompt_ids: the whole trajectory as it stood, cue included.
    """

    agent: str
    prompt_ids: tuple[int, ...]
    sampling_params: Mapping[str, Any]
    turn: Turn


@dataclass
class Trajectory:
    """Token ids that only grow. Every id that some agent has processed is a cache hit for the next one."""

    client: Client
    ids: list[int]
    steps: list[Step] = field(default_factory=list)

    def append(self, text: str) -> None:
        """Append words of ours: a cue, or what a tool said."""
        self.ids += self.client.tokenize(text)

    def speak(self, agent: str, sampling_params: Mapping[str, Any], on_text: Callable[[str], None]) -> str:
        """Let `agent` (an adapter's name) continue, and append the ids that it sampled, never its re-tokenised text.

        The id that ends a sequence stays out: it was sampled but not processed, so the cache does not hold it, and a
        later agent should not read that the text is over.

        Returns:
            The agent's words.
        """
        prompt = tuple(self.ids)
        turn = self.client.generate(prompt, adapter=agent, sampling_params=sampling_params, on_text=on_text)
        self.ids += turn.output_ids if turn.stop_id is None else turn.output_ids[:-1]
        self.steps.append(Step(agent, prompt, sampling_params, turn))
        return turn.text


def replay(client: Client, steps: Sequence[Step]) -> list[Turn]:
    """Send the requests of `steps` again, in their order, to another server, as if it gave the recorded answers.

    Each request is the recorded one, but for a single new token: its prompt, cached tokens and time to first token are
    what the other server would show. Then the recorded answer is put into the cache under the same adapter, by a
    prefill of what decoding it would have left there, because another scheme's own answer may differ.

    Returns:
        The turns of the measured requests, with one output token each.
    """
    turns = []
    for step in steps:
        turn = client.generate(
            step.prompt_ids, adapter=step.agent, sampling_params={**step.sampling_params, "max_new_tokens": 1}
        )
        turns.append(turn)
        decoded = step.turn.output_ids[:-1]  # the last sampled token was not processed
        if decoded:
            client.generate(
                [*step.prompt_ids, *decoded],
                adapter=step.agent,
                sampling_params={"max_new_tokens": 1, "temperature": 0},
            )
    return turns
