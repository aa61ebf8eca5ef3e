"""Define the workloads of the benchmark, and for each workload the target ratio to Kafka's coordinator.

A ratio is this coordinator's figure divided by Kafka's. A greater ratio is better for requests per second, a
smaller ratio for latencies and CPU time.
"""

from collections.abc import Mapping
from typing import Literal, NamedTuple

from tests.benchmarks.frames import Workload
from tests.benchmarks.loads import WriteLoad
from tests.benchmarks.system_under_test import RoundSpread, SystemUnderTest, compute_spread, ratio_spread

Figure = Literal["cpu_us", "requests_per_second", "p50_us", "p99_us"]
_NAMES = {"cpu_us": "CPU", "requests_per_second": "RPC/s", "p50_us": "p50", "p99_us": "p99"}
# The required ratio by `SystemUnderTest.log`; without an entry, the ratio is only reported.
Required = Mapping[str, float]

TODAY: dict[Workload, Required] = {
    WriteLoad(8, 1, 4): {"os": 4, "always": 1.2, "topic": 0.9},
    WriteLoad(64, 1, 4): {"os": 2.5, "always": 2, "topic": 1.4},
    WriteLoad(8, 10, 4): {"os": 4, "always": 2, "topic": 1.2},
    WriteLoad(8, 50, 4): {"os": 6, "always": 4, "topic": 2},
    WriteLoad(8, 50, 20): {"os": 6, "always": 4},
    WriteLoad(1, 1, 4): {},
}
SHAPES: dict[Workload, Required] = {
    WriteLoad(8, 10, 4, "repeated"): {"os": 3, "always": 1.5, "topic": 1},
    WriteLoad(8, 50, 4, "repeated"): {"os": 3, "always": 1.5},
    WriteLoad(8, 50, 20, "repeated"): {"os": 3, "always": 1.5},
    WriteLoad(8, 10, 4, "one repeated"): {"os": 3, "always": 1.5},
    WriteLoad(8, 10, 4, "overlapping"): {},
    WriteLoad(8, 10, 4, "unordered"): {},
    WriteLoad(8, 10, 4, "mixed"): {},
    WriteLoad(8, 1, 4, "find"): {},
}
_RECORDED: Required = {"os": 3, "always": 1.2}
_CPU: Required = {"os": 0.25, "always": 0.3}
# The requests of several connections share commit batches; the requests of a single connection do not.
_CPU_OF_ONE_CONNECTION: Required = {"os": 0.45, "always": 0.65}


class RatioTarget(NamedTuple):
    """The target ratio of a figure of a workload.

    `always_us_max` is a maximum latency in µs, which replaces the ratio with journal.sync=always.
    """

    workload: Workload
    figure: Figure
    required: Required
    always_us_max: float | None = None

    def __str__(self) -> str:
        return f"{self.workload}: {_NAMES[self.figure]}"


LATENCIES = (
    RatioTarget(WriteLoad(1, 1, 4), "p50_us", {"os": 0.75}, always_us_max=300),
    RatioTarget(WriteLoad(8, 1, 4), "p99_us", {"os": 0.3, "always": 0.6}),
)
# The minimum ratio of requests per second to the Git commit of `--against`.
PART_OF_AGAINST: Required = {"os": 0.9, "always": 0.9}


class OverloadTarget(NamedTuple):
    """A saturating load, ten times that load, and the fraction of the peak rate that must remain."""

    saturating: WriteLoad
    ten_times: WriteLoad
    part_of_peak: float = 0.8


OVERLOADS = (
    OverloadTarget(WriteLoad(64, 1, 4), WriteLoad(640, 1, 4)),
    # Both loads queue about 20,000 operations: with many share-partitions per request, or many requests in
    # flight.
    OverloadTarget(WriteLoad(40, 50, 4), WriteLoad(400, 50, 4)),
    OverloadTarget(WriteLoad(32, 1, 4, in_flight=64), WriteLoad(320, 1, 4, in_flight=64)),
    OverloadTarget(WriteLoad(64, 10, 4, "mixed"), WriteLoad(640, 10, 4, "mixed")),
)


def targets_to_kafka(workload: Workload) -> list[RatioTarget]:
    """Return the targets of a workload relative to Kafka.

    `workload` is a tuple for synthetic loads, else recorded traffic.
    """
    rates = TODAY | SHAPES
    recorded = {} if isinstance(workload, tuple) else _RECORDED
    return [
        RatioTarget(workload, "cpu_us", _CPU_OF_ONE_CONNECTION if workload.connections == 1 else _CPU),
        RatioTarget(workload, "requests_per_second", rates.get(workload, recorded)),
        *(target for target in LATENCIES if target.workload == workload),
    ]


def targets_against_other_commit(workload: Workload) -> list[RatioTarget]:
    """Return the targets of a workload relative to another commit of this project."""
    return [
        RatioTarget(workload, "cpu_us", {}),
        RatioTarget(workload, "requests_per_second", PART_OF_AGAINST if workload in TODAY else {}),
    ]


class TargetVerdict(NamedTuple):
    """The ratio of two systems, the target, and whether the ratio meets it (None without a target)."""

    ratio: RoundSpread
    asked: str = ""
    met: bool | None = None

    def __str__(self) -> str:
        return f"{self.ratio}, NO: {self.asked}" if self.met is False else str(self.ratio)


def compare_with_target(target: RatioTarget, ours: SystemUnderTest, theirs: SystemUnderTest) -> TargetVerdict:
    """Compare the rounds of two systems with the target of a figure."""
    our_figures = ours.per_round(target.workload, target.figure)
    ratio = ratio_spread(our_figures, theirs.per_round(target.workload, target.figure))
    if ours.log == "always" and target.always_us_max is not None:
        met = compute_spread(our_figures).median <= target.always_us_max
        return TargetVerdict(ratio, f"≤ {target.always_us_max / 1000:g} ms", met)
    required = target.required.get(ours.log)
    if required is None:
        return TargetVerdict(ratio)
    if target.figure == "requests_per_second":
        return TargetVerdict(ratio, f"≥ {required:g}", ratio.median >= required)
    return TargetVerdict(ratio, f"≤ {required:g}", ratio.median <= required)


def compare_overload(overload: OverloadTarget, side: SystemUnderTest) -> TargetVerdict | None:
    """Compare the rate at ten times the saturating load with the peak rate; None without figures of both."""
    if not {overload.ten_times, overload.saturating} <= side.rounds.keys():
        return None
    loads = (overload.ten_times, overload.saturating)
    ratio = ratio_spread(*(side.per_round(load, "requests_per_second") for load in loads))
    return TargetVerdict(ratio, f"≥ {overload.part_of_peak:g}", ratio.median >= overload.part_of_peak)
