"""Where a scheme saturates: the rule by which rates are chosen, measured or simulated."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

GROWTH = 1.1  # a rate twice as high must bring so much more throughput for the next doubling
NEAR = 0.95  # of the highest throughput


def doubling(start: float, throughput: Mapping[float, float | None]) -> Iterator[float]:
    """Rates from `start` on, each twice the one before, until throughput grows by less than GROWTH, or a cell failed.

    Args:
        throughput: by rate; the iteration ends after the first rate that it lacks.
    """
    rate, before = start, 0.0
    while True:
        yield rate
        now = throughput.get(rate)
        if now is None or now < GROWTH * before:
            return
        rate, before = 2 * rate, now


def peak(throughput: Mapping[float, float | None]) -> float | None:
    """Where throughput peaks: the lowest rate that brings nearly the highest, NEAR of it; None if all cells failed.

    Beyond it an open-loop load only makes the queue longer, and where the highest value lies there is chance.
    """
    measured = {rate: value for rate, value in throughput.items() if value is not None}
    if not measured:
        return None
    return min(rate for rate, value in measured.items() if value >= NEAR * max(measured.values()))
