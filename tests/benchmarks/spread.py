"""Summarize several rounds of a measurement: median, minimum and maximum.

Systems are measured in turn, so each ratio compares two systems in the same round. A slowdown of the machine
affects both of them.
"""

import statistics
from collections.abc import Sequence
from typing import NamedTuple


class RoundSpread(NamedTuple):
    """Median, minimum and maximum of the rounds."""

    median: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{_format_number(self.median)} ({_format_number(self.low)}-{_format_number(self.high)})"


def compute_spread(rounds: Sequence[float]) -> RoundSpread:
    """Return the median and the extremes of the rounds. There must be at least one round."""
    return RoundSpread(statistics.median(rounds), min(rounds), max(rounds))


def ratio_spread(ours: Sequence[float], theirs: Sequence[float]) -> RoundSpread:
    """Return the spread of `ours / theirs`, computed round by round."""
    return compute_spread([our / their for our, their in zip(ours, theirs, strict=True)])


def _format_number(number: float) -> str:
    """Format a number with about three significant digits."""
    if number >= 100:
        return f"{number:,.0f}"
    return f"{number:.1f}" if number >= 10 else f"{number:.2f}"
