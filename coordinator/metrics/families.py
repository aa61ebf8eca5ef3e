"""Create metric families, including those whose values are read from the shards at scrape time."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol

import msgspec
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric

from coordinator.fastpath.histogram import RECORDS, SECONDS, Histogram

PREFIX = "share_coordinator_"

SHARD_STATUSES = ("LOADING", "ACTIVE", "FAILED", "CLOSED")


class Counter(NamedTuple):
    """A counter family; `label` is the name of its label, or empty."""

    name: str
    meaning: str
    label: str = ""


# The counters that `Metrics.count` increments.
COUNTERS = (
    Counter("write_operations", "Writes of a share-partition's state."),
    Counter("append_failures", "Failed appends to the log."),
    Counter("fenced", "Shards that another owner claimed in the log."),
    Counter("snapshots", "Snapshots written, by cause.", "kind"),
    Counter("prune_failures", "Failed attempts to prune the log.", "reason"),
    Counter("connections_opened", "Connections accepted."),
    Counter("connections_closed", "Closed connections by reason.", "reason"),
    Counter("frames_refused", "Frames that were not valid requests, by reason.", "reason"),
    Counter("http_refused", "Refused HTTP requests by status.", "status"),
    Counter("expired_share_partitions", "Share-partitions whose abandoned state was removed.", "reason"),
    Counter("expiry_failures", "Failed rounds or removals of expiry."),
)
# The histograms that `Metrics.histogram` returns: name, bucket ranges and help text.
HISTOGRAMS = (
    ("append_batch_records", RECORDS, "Number of records of an append to the log."),
    ("append_duration_seconds", SECONDS, "Duration of an append to the log."),
    ("shard_load_duration_seconds", SECONDS, "Duration of a shard load."),
    ("event_loop_lag_seconds", SECONDS, "Delay of the last timer of the event loop."),
)


class ShardView(msgspec.Struct, frozen=True, kw_only=True):
    """The status of one shard. Offsets are log offsets; sizes are in bytes."""

    state_partition: int
    status: str
    failure: str | None
    owner_epoch: int
    share_partitions: int
    start_log_offset: int
    end_log_offset: int
    redundant_offset: int
    load_ms: int
    loaded_records: int
    live_bytes: int
    state_batches: int


class RuntimeStats(Protocol):
    """The values of the runtime that a scrape reads; the cost does not depend on the size of the state."""

    def shard_views(self) -> Sequence[ShardView]: ...
    def health(self) -> list[str]: ...
    def appends_in_flight(self) -> int: ...


class MembershipStats(Protocol):
    """The values of the group membership that a scrape reads."""

    @property
    def generation(self) -> int: ...
    @property
    def heartbeat_age_s(self) -> float | None: ...
    @property
    def members(self) -> int: ...
    @property
    def rebalances(self) -> int: ...


class ForwarderStats(Protocol):
    """The values of the forwarder that a scrape reads."""

    @property
    def active(self) -> bool: ...
    @property
    def held_operations(self) -> int: ...
    @property
    def requests_in_flight(self) -> int: ...


def counter_family(name: str, meaning: str, value: float) -> Metric:
    return CounterMetricFamily(PREFIX + name, meaning, value=value)


def labelled_counter(name: str, meaning: str, label: str, values: Mapping[str, int]) -> Metric:
    family = CounterMetricFamily(PREFIX + name, meaning, labels=[label])
    for value, count in sorted(values.items()):
        family.add_metric([value], count)
    return family


def gauge_family(name: str, meaning: str, value: float) -> Metric:
    return GaugeMetricFamily(PREFIX + name, meaning, value=value)


def labelled_gauge(name: str, meaning: str, label: str, values: dict[str, int]) -> Metric:
    family = GaugeMetricFamily(PREFIX + name, meaning, labels=[label])
    for value, read_value in values.items():
        family.add_metric([value], read_value)
    return family


def histogram_family(name: str, meaning: str, observations: Histogram) -> Metric:
    buckets, total = observations.cumulative_counts()
    return HistogramMetricFamily(PREFIX + name, meaning, buckets=buckets, sum_value=total)


def shard_families(shards: Sequence[ShardView]) -> Iterator[Metric]:
    statuses = dict.fromkeys(SHARD_STATUSES, 0)
    for shard in shards:
        statuses[shard.status] = statuses.get(shard.status, 0) + 1
    yield labelled_gauge(
        "shards", "Shards by state.", "state", {status.lower(): count for status, count in statuses.items()}
    )
    for name, meaning, read_value in _SHARD_GAUGES:
        yield labelled_gauge(
            name, meaning, "shard", {str(shard.state_partition): read_value(shard) for shard in shards}
        )


def membership_families(membership: MembershipStats) -> Iterator[Metric]:
    """Create the families of a group member; without a lease, the heartbeat age is NaN."""
    age_s = membership.heartbeat_age_s
    yield gauge_family(
        "membership_generation", "Generation of the current assignment.", membership.generation
    )
    yield gauge_family("membership_replicas", "Coordinators in the group.", membership.members)
    yield counter_family("rebalances", "Assignments that this process received.", membership.rebalances)
    yield gauge_family(
        "last_heartbeat_age_seconds",
        "Time since the last confirmed heartbeat.",
        math.nan if age_s is None else age_s,
    )


def forwarder_families(forwarder: ForwarderStats) -> Iterator[Metric]:
    yield gauge_family("forwarding", "1 if requests are forwarded to other coordinators.", forwarder.active)
    yield gauge_family(
        "forward_inflight", "Forwarded requests that wait for a response.", forwarder.requests_in_flight
    )
    yield gauge_family(
        "forward_held",
        "Share-partitions of requests that wait for an owner to forward to.",
        forwarder.held_operations,
    )


_SHARD_GAUGES: tuple[tuple[str, str, Callable[[ShardView], int]], ...] = (
    ("shard_owner_epoch", "Owner epoch of this process for the shard.", lambda shard: shard.owner_epoch),
    ("shard_share_partitions", "Share-partitions with state.", lambda shard: shard.share_partitions),
    ("shard_live_bytes", "Bytes of state that are not redundant.", lambda shard: shard.live_bytes),
    ("shard_state_batches", "State batches in flight.", lambda shard: shard.state_batches),
    ("shard_loaded_records", "Records read at the last load.", lambda shard: shard.loaded_records),
    ("shard_log_start_offset", "First offset of the log.", lambda shard: shard.start_log_offset),
    ("shard_log_end_offset", "Log offset of the next record.", lambda shard: shard.end_log_offset),
    (
        "shard_redundant_offset",
        "Redundant offset: records below it can be pruned.",
        lambda shard: shard.redundant_offset,
    ),
)
