"""Determine the problem of a share group from its signals. Pure: no I/O, no clock.

Severity order: records lost before delivery, stuck, outage, poison, no consumers, none.
"""

from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

import msgspec


class Problem(IntEnum):
    """A problem of a share group; a greater value is more severe."""

    NONE = 0
    NO_CONSUMERS = 1
    POISON = 2
    OUTAGE = 3
    STUCK = 4
    LOST_BEFORE_DELIVERY = 5

    @property
    def label(self) -> str:
        """The name in metrics, events and the API: lower case with hyphens."""
        return self.name.lower().replace("_", "-")


class SignalLimits(NamedTuple):
    """Thresholds above which a value in `GroupSignals` is a problem.

    `delivery_count_limit` is Kafka's group.share.delivery.count.limit and `window_records` its
    group.share.partition.max.record.locks.
    """

    delivery_count_limit: int = 5
    window_records: int = 2_000
    stuck_s: float = 60.0
    outage_records: int = 100
    outage_share: float = 0.5
    # Records per second. Rates are smoothed: without a minimum, an outage would end long after the failures.
    outage_rate: float = 1.0
    lost_shown_s: float = 3_600.0


class GroupSignals(msgspec.Struct, kw_only=True):
    """The signals of one share group. Counts are user records; rates are per second; -1 means unknown."""

    group: str
    share_partitions: int = 0
    lag: int = -1
    in_flight: int = 0
    redelivered: int = 0
    delivery_count_max: int = 0
    near_delivery_limit: int = 0
    window_usage: float = 0.0
    # How long the start offset of the worst share-partition has not moved although records wait, and that
    # share-partition as TOPIC-PARTITION (with a topic id if the name is not known).
    stuck_s: float = 0.0
    stuck_at: str = ""
    # Age of the record at the start offset of the share-partition with the largest lag.
    oldest_record_age_s: float = -1.0
    acknowledged_rate: float = -1.0
    released_rate: float = -1.0
    rejected_rate: float = -1.0
    lost_records: int = 0
    lost_age_s: float = -1.0
    members: int = -1
    problem: Problem = Problem.NONE
    message: str = ""


@dataclass(frozen=True)
class SignalEvent:
    """A problem of a group began (`began` is true) or ended."""

    timestamp_ms: int
    group: str
    problem: str
    began: bool
    message: str


def find_problem(signals: GroupSignals, limits: SignalLimits) -> tuple[Problem, str]:
    """Return the most severe problem, and a message that describes it."""
    group = signals.group
    if signals.lost_records and 0 <= signals.lost_age_s < limits.lost_shown_s:
        return Problem.LOST_BEFORE_DELIVERY, (
            f"retention deleted {_format_records(signals.lost_records)} of group {group} before their "
            f"delivery, most recently {_format_duration(signals.lost_age_s)} ago"
        )
    if signals.stuck_s >= limits.stuck_s and signals.members != 0:
        return Problem.STUCK, (
            f"the start offset of group {group} in {signals.stuck_at} has not moved for "
            f"{_format_duration(signals.stuck_s)} although records wait; "
            f"{_format_records(signals.in_flight)} in flight"
        )
    failing = max(0.0, signals.released_rate) + max(0.0, signals.rejected_rate)
    finished = max(0.0, signals.acknowledged_rate)
    if (
        failing >= limits.outage_rate
        and failing >= limits.outage_share * (failing + finished)
        and (signals.redelivered >= limits.outage_records)
    ):
        return Problem.OUTAGE, (
            f"consumers of group {group} release or reject {failing:.1f} records/s and acknowledge "
            f"{finished:.1f} records/s; {_format_records(signals.redelivered)} delivered more than once"
        )
    if signals.near_delivery_limit:
        return Problem.POISON, (
            f"group {group} has {_format_records(signals.near_delivery_limit)} with one delivery left; the "
            f"limit is {limits.delivery_count_limit} deliveries"
        )
    if signals.members == 0 and signals.lag > 0:
        return (
            Problem.NO_CONSUMERS,
            f"group {group} has no members and a lag of {_format_records(signals.lag)}",
        )
    return Problem.NONE, ""


def _format_records(count: int) -> str:
    return f"{count} record{'' if count == 1 else 's'}"


def _format_duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 7_200:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3_600:.0f} h"
