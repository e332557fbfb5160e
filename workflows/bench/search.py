"""Which cell comes next, from those that are done: the whole order of a benchmark, and so also how it goes on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from descant.workflows.bench.cells import Key
from descant.workflows.bench.peak import doubling, peak
from descant.workflows.bench.recipe import Recipe

Throughput = Mapping[Key, float | None]  # workflows a second; None for a cell that failed


@dataclass(frozen=True)
class Plan:
    """Of a recipe, what says which cells there are."""

    schemes: Sequence[str]
    agents: Sequence[int]
    rates: Sequence[float]
    start: float
    fill: bool
    repeats: int

    @property
    def count(self) -> int | None:
        """How many there are; None where that depends on what is measured."""
        return len(self.schemes) * len(self.agents) * len(self.rates) * self.repeats or None


def next_cell(recipe: Plan | Recipe, done: Throughput) -> Key | None:
    """The cell to run now; None when all are done.

    For each repeat and number of agents the schemes take turns. Repeat 0 finds the rates, for each scheme by itself;
    then each scheme is also measured at the rates where the others peak, so that they can be compared there. The later
    repeats run the same rates.
    """
    for repeat in range(recipe.repeats):
        for agents in recipe.agents:
            for key in _cells(recipe, done, agents, repeat):
                if key not in done:
                    return key
    return None


def at_rates(done: Throughput, scheme: str, agents: int, repeat: int) -> dict[float, float | None]:
    """Throughput of a scheme by rate."""
    return {
        key.rate: value
        for key, value in done.items()
        if (key.scheme, key.agents, key.repeat) == (scheme, agents, repeat)
    }


def _cells(recipe: Plan | Recipe, done: Throughput, agents: int, repeat: int) -> Iterator[Key]:
    order = recipe.schemes if repeat % 2 == 0 else recipe.schemes[::-1]
    if recipe.rates:
        for scheme in order:
            yield from (Key(scheme, agents, rate, repeat) for rate in recipe.rates)
        return
    if repeat > 0:
        for scheme in order:
            first = at_rates(done, scheme, agents, 0)
            yield from (Key(scheme, agents, rate, repeat) for rate in sorted(first) if first[rate] is not None)
        return
    searched = {}
    for scheme in order:
        rates = list(doubling(recipe.start, at_rates(done, scheme, agents, 0)))
        yield from (Key(scheme, agents, rate, 0) for rate in rates)
        # All that was asked for is there, or next_cell had stopped at the first that is not.
        searched[scheme] = {rate: done[Key(scheme, agents, rate, 0)] for rate in rates}
    peaks = {scheme: at for scheme in order if (at := peak(searched[scheme])) is not None}
    for scheme in order:
        yield from (Key(scheme, agents, rate, 0) for rate in sorted(set(peaks.values())))
        if recipe.fill and scheme in peaks:
            for factor in (2**-0.5, 2**0.5):
                yield Key(scheme, agents, float(f"{peaks[scheme] * factor:.4g}"), 0)
