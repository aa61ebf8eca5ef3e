"""Create the metrics of share groups, for those with the most severe problems and the largest lags."""

from collections.abc import Collection, Iterator
from heapq import nsmallest
from typing import Protocol

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from coordinator.metrics.families import PREFIX, gauge_family

# Maximum number of groups with separate series; the totals include all groups.
GROUPS_MAX = 100


class GroupSignalValues(Protocol):
    """The signals of a share group: these attributes, and those that `_GAUGES` names."""

    group: str
    lag: int

    @property
    def problem(self) -> "SignalProblem": ...


class SignalProblem(Protocol):
    """A problem: comparable by severity, with a label."""

    @property
    def label(self) -> str: ...
    def __int__(self) -> int: ...


_GAUGES = (
    ("lag_records", "Records that were not delivered or not completed (KIP-1226).", "lag"),
    ("in_flight_records", "Records at or above the start offset that have a delivery state.", "in_flight"),
    ("redelivered_records", "In-flight records that were delivered more than once.", "redelivered"),
    ("delivery_count_max", "The highest delivery count of an in-flight record.", "delivery_count_max"),
    (
        "near_delivery_limit_records",
        "Available records that the next failed delivery archives.",
        "near_delivery_limit",
    ),
    ("window_usage_ratio", "Largest share of the in-flight window that is used.", "window_usage"),
    ("stuck_seconds", "Seconds since a start offset moved, although records wait.", "stuck_s"),
    (
        "oldest_record_age_seconds",
        "Age of the first incomplete record, in the share-partition with the largest lag.",
        "oldest_record_age_s",
    ),
    ("acknowledged_records_per_second", "Records acknowledged.", "acknowledged_rate"),
    ("released_records_per_second", "Records released for another delivery.", "released_rate"),
    ("rejected_records_per_second", "Records rejected or out of deliveries.", "rejected_rate"),
    ("lost_records", "Records that retention deleted before they were delivered.", "lost_records"),
    ("members", "Members of the group.", "members"),
)


def signal_families(groups: Collection[GroupSignalValues]) -> Iterator[Metric]:
    """Create the metric families; an unknown value has no series."""
    selected = nsmallest(GROUPS_MAX, groups, key=lambda each: (-int(each.problem), -each.lag, each.group))
    yield gauge_family("share_groups", "Share groups that have state in this process.", len(groups))
    problems = GaugeMetricFamily(
        PREFIX + "share_group_problem", "1 for the problem that a group has.", labels=["group", "problem"]
    )
    for each in selected:
        if int(each.problem):
            problems.add_metric([each.group, each.problem.label], 1)
    yield problems
    for name, meaning, attribute in _GAUGES:
        family = GaugeMetricFamily(PREFIX + "share_group_" + name, meaning, labels=["group"])
        for each in selected:
            value = getattr(each, attribute)
            if value >= 0:
                family.add_metric([each.group], value)
        yield family
