"""What ours is to reach against Kafka's own coordinator, and whether it does.

Requests a second count as ours over Kafka's, so more is better; latencies too, so less is better.
"""

from typing import Literal, NamedTuple

from tests.benchmarks.frames import Load
from tests.benchmarks.side import Side
from tests.benchmarks.spread import Spread, ratios, spread

Figure = Literal["requests_per_second", "p50_us", "p99_us"]
LESS_IS_BETTER = ("p50_us", "p99_us")
_NAMES = {"requests_per_second": "RPC/s", "p50_us": "p50", "p99_us": "p99"}


class Aim(NamedTuple):
    """A row: what is asked for with each journal.sync; None is only reported.

    `always_us_max` is a latency that journal.sync=always is to keep whatever Kafka's is.
    """

    load: Load
    figure: Figure
    os: float | None
    always: float | None
    always_us_max: float | None = None

    def __str__(self) -> str:
        return f"{self.load}: {_NAMES[self.figure]}"

    def of(self, sync: str) -> float | None:
        """Return the ratio that is asked for."""
        return self.os if sync == "os" else self.always


AIMS = (
    Aim(Load(8, 1, 4), "requests_per_second", 4, 1.2),
    Aim(Load(64, 1, 4), "requests_per_second", 2.5, 2),
    Aim(Load(8, 10, 4), "requests_per_second", 4, 2),
    Aim(Load(8, 50, 4), "requests_per_second", 6, 4),
    Aim(Load(8, 50, 20), "requests_per_second", 6, 4),
    Aim(Load(1, 1, 4), "p50_us", 0.75, None, always_us_max=300),
    Aim(Load(8, 1, 4), "p99_us", 0.3, 0.6),
)
LOADS = tuple(dict.fromkeys(aim.load for aim in AIMS))


class Verdict(NamedTuple):
    """How a side does by an aim: the ratio to Kafka, and whether it is met; None where none is asked for."""

    ratio: Spread
    asked: str
    met: bool | None


def is_met(aim: Aim, sync: str, ratio: float, own: float) -> bool | None:
    """Tell whether a ratio, or our own latency, is what was asked for; None if nothing was."""
    if sync == "always" and aim.always_us_max is not None:
        return own <= aim.always_us_max
    asked = aim.of(sync)
    if asked is None:
        return None
    return ratio <= asked if aim.figure in LESS_IS_BETTER else ratio >= asked


def asked_text(aim: Aim, sync: str) -> str:
    """Say what is asked for."""
    if sync == "always" and aim.always_us_max is not None:
        return f"≤ {aim.always_us_max / 1000:g} ms"
    asked = aim.of(sync)
    if asked is None:
        return "-"
    return f"{'≤' if aim.figure in LESS_IS_BETTER else '≥'} {asked:g}"


def verdict(aim: Aim, ours: Side, kafka: Side) -> Verdict:
    """Hold the rounds of a side against those of Kafka."""
    own = ours.of(aim.load, aim.figure)
    ratio = ratios(own, kafka.of(aim.load, aim.figure))
    met = is_met(aim, ours.sync, ratio.median, spread(own).median)
    return Verdict(ratio, asked_text(aim, ours.sync), met)
