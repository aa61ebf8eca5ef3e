"""What several rounds of a measurement come to: the middle, and how far the rounds lie apart.

Sides are measured in turn, so a round of one side stands beside the same round of the other: a ratio is taken
round by round, and its spread is that of the rounds.  What slows the machine for a while slows both.
"""

import statistics
from collections.abc import Sequence
from typing import NamedTuple


class Spread(NamedTuple):
    """Median, least and greatest of the rounds."""

    median: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{_short(self.median)} ({_short(self.low)}-{_short(self.high)})"


def spread(rounds: Sequence[float]) -> Spread:
    """Return the middle of the rounds and their ends. There must be at least one."""
    return Spread(statistics.median(rounds), min(rounds), max(rounds))


def ratios(ours: Sequence[float], theirs: Sequence[float]) -> Spread:
    """Return how many times theirs ours is, round by round."""
    return spread([our / their for our, their in zip(ours, theirs, strict=True)])


def _short(number: float) -> str:
    """Write a number with about three digits that count."""
    if number >= 100:
        return f"{number:,.0f}"
    return f"{number:.1f}" if number >= 10 else f"{number:.2f}"
