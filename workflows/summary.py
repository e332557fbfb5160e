"""What a run cost, in one line or in numbers."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from descant.workflows.limits import run


@dataclass(frozen=True)
class Totals:
    """Sums over turns, in tokens.

    prompt: read. cached: of those, taken from the KV cache. cross_agent: of those, another agent's. generated: written.
    ttfts: seconds to the first token, of each turn.
    """

    turns: int
    prompt: int
    cached: int
    cross_agent: int
    generated: int
    ttfts: Sequence[float]

    @classmethod
    def of(cls, turns: Iterable[Mapping[str, Any]]) -> Totals:
        turns = list(turns)
        return cls(
            turns=len(turns),
            prompt=sum(turn["prompt_tokens"] for turn in turns),
            cached=sum(turn["cached_tokens"] for turn in turns),
            cross_agent=sum(turn["cross_agent"] for turn in turns),
            generated=sum(turn["output_tokens"] for turn in turns),
            ttfts=sorted(turn["ttft"] for turn in turns),
        )

    @classmethod
    def of_run(cls, state: Mapping[str, Any]) -> Totals:
        """Those of the last run in a graph's state."""
        return cls.of(turn for step in run(state) for turn in step["turns"])

    @property
    def cached_share(self) -> float:
        return self.cached / self.prompt if self.prompt else 0.0

    @property
    def cross_agent_share(self) -> float:
        return self.cross_agent / self.prompt if self.prompt else 0.0

    def ttft(self, percentile: int) -> float:
        """Seconds; 0 without turns."""
        if len(self.ttfts) < 2:
            return self.ttfts[0] if self.ttfts else 0.0
        return statistics.quantiles(self.ttfts, n=100, method="inclusive")[percentile - 1]

    def as_json(self) -> dict[str, Any]:
        return {
            "turns": self.turns,
            "prompt_tokens": self.prompt,
            "cached_tokens": self.cached,
            "prefilled_tokens": self.prompt - self.cached,
            "cross_agent_tokens": self.cross_agent,
            "generated_tokens": self.generated,
            "cached_share": round(self.cached_share, 4),
            "cross_agent_share": round(self.cross_agent_share, 4),
            "ttft_p50": round(self.ttft(50), 4),
            "ttft_p90": round(self.ttft(90), 4),
        }


def line(totals: Mapping[str, Any]) -> str:
    """`Totals.as_json` in one line."""
    return (
        f"{totals['turns']} turns, {totals['generated_tokens']:,} tokens generated; {totals['prompt_tokens']:,} prompt "
        f"tokens, {totals['cached_tokens']:,} reused ({totals['cached_share']:.0%}), {totals['cross_agent_tokens']:,} "
        f"from another agent ({totals['cross_agent_share']:.0%}); first token after {totals['ttft_p50']:.2f} s (median)"
    )
