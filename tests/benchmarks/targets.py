"""Define the workloads of the benchmark, and the target ratio to Kafka's own coordinator for each.

A ratio is this coordinator's figure divided by Kafka's. A greater ratio is better for requests per second, a
smaller ratio for latencies and CPU time.
"""

from typing import Literal, NamedTuple

from tests.benchmarks.frames import Workload
from tests.benchmarks.loads import WriteLoad
from tests.benchmarks.spread import RoundSpread, compute_spread, ratio_spread
from tests.benchmarks.system_under_test import SystemUnderTest

Figure = Literal["cpu_us", "requests_per_second", "p50_us", "p99_us"]
LESS_IS_BETTER = ("cpu_us", "p50_us", "p99_us")
_NAMES = {"cpu_us": "CPU", "requests_per_second": "RPC/s", "p50_us": "p50", "p99_us": "p99"}


class RatioTarget(NamedTuple):
    """The target ratio of a workload for each journal.sync. If it is None, the ratio is only reported.

    `always_us_max` is a maximum latency in µs, which replaces the ratio with journal.sync=always.
    """

    workload: Workload
    figure: Figure
    os: float | None
    always: float | None
    always_us_max: float | None = None

    def __str__(self) -> str:
        return f"{self.workload}: {_NAMES[self.figure]}"

    def required_ratio(self, sync: str) -> float | None:
        """Return the ratio that is required with this journal.sync."""
        return self.os if sync == "os" else self.always


TODAY = (
    RatioTarget(WriteLoad(8, 1, 4), "requests_per_second", 4, 1.2),
    RatioTarget(WriteLoad(64, 1, 4), "requests_per_second", 2.5, 2),
    RatioTarget(WriteLoad(8, 10, 4), "requests_per_second", 4, 2),
    RatioTarget(WriteLoad(8, 50, 4), "requests_per_second", 6, 4),
    RatioTarget(WriteLoad(8, 50, 20), "requests_per_second", 6, 4),
    RatioTarget(WriteLoad(1, 1, 4), "requests_per_second", None, None),
)
LATENCIES = (
    RatioTarget(WriteLoad(1, 1, 4), "p50_us", 0.75, None, always_us_max=300),
    RatioTarget(WriteLoad(8, 1, 4), "p99_us", 0.3, 0.6),
)
SHAPES = (
    *(
        RatioTarget(WriteLoad(8, *size, "repeated"), "requests_per_second", 3, 1.5)
        for size in ((10, 4), (50, 4), (50, 20))
    ),
    RatioTarget(WriteLoad(8, 10, 4, "one repeated"), "requests_per_second", 3, 1.5),
    *(
        RatioTarget(WriteLoad(8, 10, 4, kind), "requests_per_second", None, None)
        for kind in ("overlapping", "unordered", "mixed")
    ),
    RatioTarget(WriteLoad(8, 1, 4, "find"), "requests_per_second", None, None),
)


class OverloadTarget(NamedTuple):
    """A load that saturates the coordinator, ten times that load, and the part of the peak rate that must
    remain.
    """

    saturating: WriteLoad
    ten_times: WriteLoad
    part_of_peak: float = 0.8


OVERLOADS = (
    OverloadTarget(WriteLoad(64, 1, 4), WriteLoad(640, 1, 4)),
    # About 20,000 queued operations, by requests with many share-partitions or by many requests in flight.
    OverloadTarget(WriteLoad(40, 50, 4), WriteLoad(400, 50, 4)),
    OverloadTarget(WriteLoad(32, 1, 4, in_flight=64), WriteLoad(320, 1, 4, in_flight=64)),
    OverloadTarget(WriteLoad(64, 10, 4, "mixed"), WriteLoad(640, 10, 4, "mixed")),
)
# The minimum ratio of requests per second to the commit of `--against`.
PART_OF_AGAINST = 0.9


def cpu_time_target(workload: Workload) -> RatioTarget:
    """Return the target for the CPU time of a request. The target is lower for several connections, because
    their requests share batches.
    """
    return (
        RatioTarget(workload, "cpu_us", 0.45, 0.65)
        if workload.connections == 1
        else RatioTarget(workload, "cpu_us", 0.25, 0.3)
    )


class TargetVerdict(NamedTuple):
    """The ratio of a system to Kafka, the target, and whether the ratio meets it (None without a target)."""

    ratio: RoundSpread
    asked: str
    met: bool | None


def is_met(aim: RatioTarget, sync: str, ratio: float, own: float) -> bool | None:
    """Return whether a ratio or a latency in µs (`own`) meets the target; None without a target."""
    if sync == "always" and aim.always_us_max is not None:
        return own <= aim.always_us_max
    asked = aim.required_ratio(sync)
    if asked is None:
        return None
    return ratio <= asked if aim.figure in LESS_IS_BETTER else ratio >= asked


def target_text(aim: RatioTarget, sync: str) -> str:
    """Return the target as text."""
    if sync == "always" and aim.always_us_max is not None:
        return f"≤ {aim.always_us_max / 1000:g} ms"
    asked = aim.required_ratio(sync)
    if asked is None:
        return "-"
    return f"{'≤' if aim.figure in LESS_IS_BETTER else '≥'} {asked:g}"


def compare_with_target(aim: RatioTarget, ours: SystemUnderTest, kafka: SystemUnderTest) -> TargetVerdict:
    """Compare the rounds of a system with the rounds of Kafka."""
    own = ours.per_round(aim.workload, aim.figure)
    ratio = ratio_spread(own, kafka.per_round(aim.workload, aim.figure))
    met = is_met(aim, ours.sync, ratio.median, compute_spread(own).median)
    return TargetVerdict(ratio, target_text(aim, ours.sync), met)
