"""A fast histogram: a list of counters and a sum, 0.3 µs per observation.

The histogram of prometheus_client takes 0.6 µs and a lock for each observation, and each request has several.
This one needs no lock, because only the event loop uses it.
"""

from bisect import bisect_left
from collections.abc import Sequence

from coordinator import fastpath

# 0.1 ms to 10 s: a request from memory takes 0.2 ms, a broker waits 30 s.
# fmt: off
SECONDS = (
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0,
)
# fmt: on
RECORDS = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0, 5000.0)


class Histogram:
    """The number of values in each range, and their sum."""

    __slots__ = ("_bounds", "_counts", "_sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def add(self, value: float) -> None:
        """Count one value. As in Prometheus, an upper bound is inclusive."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def cumulative(self) -> tuple[list[tuple[str, float]], float]:
        """Return ([(upper bound, cumulative count)], sum of all values) for a family."""
        seen, buckets = 0, []
        for bound, count in zip((*map(repr, self._bounds), "+Inf"), self._counts, strict=True):
            seen += count
            buckets.append((bound, float(seen)))
        return buckets, self._sum


def new_histogram(bounds: Sequence[float]) -> Histogram:
    """Make a histogram; that of the compiled module, if built, takes a tenth of the time."""
    if fastpath.compiled is None:
        return Histogram(bounds)
    compiled: Histogram = fastpath.compiled.Histogram(bounds)
    return compiled
