"""Convert states to API responses."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from coordinator.cluster.topics import compute_lag
from coordinator.metrics import ShardView
from coordinator.observe.signals import GroupSignals, Problem
from coordinator.operate.admin.api_models import Group, Shard, SharePartition
from coordinator.operate.admin.cluster_info import ClusterInfo
from coordinator.operate.admin.offset_ranges import DeliverySums, last_offset
from coordinator.operate.admin.owner_directory import Owner
from coordinator.shard import ShareState
from protocol.routing import state_partition
from protocol.state_records import SharePartitionKey, topic_id_text


class GroupTotals:
    """Sums over the share-partitions of one group."""

    __slots__ = ("last_write_ms", "share_partitions", "state_batches", "topic_ids")

    def __init__(self) -> None:
        self.topic_ids: set[bytes] = set()
        self.share_partitions = 0
        self.state_batches = 0
        self.last_write_ms = 0

    def add(self, key: SharePartitionKey, state: ShareState) -> None:
        """Add one share-partition of the group."""
        self.topic_ids.add(key.topic_id)
        self.share_partitions += 1
        self.state_batches += state.batch_count
        self.last_write_ms = max(self.last_write_ms, state.last_write_ms)


def make_group(group_id: str, totals: GroupTotals, all_signals: Mapping[str, GroupSignals]) -> Group:
    """Create the response for a group, which has no signals before the first pass that saw it."""
    signals = all_signals.get(group_id)
    return Group(
        lag=None if signals is None or signals.lag < 0 else signals.lag,
        in_flight_records=None if signals is None else signals.in_flight,
        problem=(Problem.NONE if signals is None else signals.problem).label,
        group=group_id,
        topics=len(totals.topic_ids),
        share_partitions=totals.share_partitions,
        state_batches=totals.state_batches,
        last_write=iso_time(totals.last_write_ms),
        last_write_ms=totals.last_write_ms,
    )


def make_shard(shard_view: ShardView, *, here: bool, owner: Owner | None) -> Shard:
    """Create the response for a shard."""
    return Shard(
        state_partition=shard_view.state_partition,
        status=shard_view.status,
        here=here,
        owner=owner,
        failure=shard_view.failure,
        owner_epoch=shard_view.owner_epoch,
        share_partitions=shard_view.share_partitions,
        start_log_offset=shard_view.start_log_offset,
        end_log_offset=shard_view.end_log_offset,
        redundant_offset=shard_view.redundant_offset,
        load_ms=shard_view.load_ms,
        loaded_records=shard_view.loaded_records,
        live_bytes=shard_view.live_bytes,
        # While a shard is not loaded, only the start of its log is known.
        log_records=max(0, shard_view.end_log_offset - shard_view.start_log_offset),
        prune_lag=max(0, shard_view.redundant_offset - shard_view.start_log_offset),
        state_batches=shard_view.state_batches,
    )


def make_share_partition(
    key: SharePartitionKey,
    state: ShareState,
    sums: DeliverySums,
    state_partitions: int,
    cluster_info: ClusterInfo,
) -> SharePartition:
    """Create the response for a share-partition in a list."""
    return SharePartition(**_share_partition_fields(key, state, sums, state_partitions, cluster_info))


def make_share_partition_detail(
    key: SharePartitionKey,
    state: ShareState,
    sums: DeliverySums,
    state_partitions: int,
    cluster_info: ClusterInfo,
) -> dict[str, Any]:
    """Return the fields of the response for one share-partition, without its offset ranges."""
    end_offset = cluster_info.end_offsets.get((key.topic_id, key.partition))
    return {
        **_share_partition_fields(key, state, sums, state_partitions, cluster_info),
        "leader_epoch_max": state.leader_epoch_max,
        "snapshot_epoch": state.snapshot_epoch,
        "snapshot_created_ms": state.create_timestamp,
        "snapshot_written_ms": state.write_timestamp,
        "updates_since_snapshot": state.updates,
        "last_in_flight_offset": last_offset(state.batches),
        "oldest_unfinished": sums.oldest_unfinished_record(state, end_offset),
        "most_delivered": sums.most_delivered_ranges(),
    }


def _share_partition_fields(
    key: SharePartitionKey,
    state: ShareState,
    sums: DeliverySums,
    state_partitions: int,
    cluster_info: ClusterInfo,
) -> dict[str, Any]:
    end_offset = cluster_info.end_offsets.get((key.topic_id, key.partition))
    return {
        "group": key.group_id,
        "topic": cluster_info.names.get(key.topic_id),
        "topic_id": topic_id_text(key.topic_id),
        "topic_uuid": str(UUID(bytes=key.topic_id)),
        "partition": key.partition,
        "state_partition": state_partition(key, state_partitions),
        "start_offset": state.start_offset,
        "end_offset": end_offset,
        "lag": compute_lag(state.start_offset, state.delivery_complete_count, end_offset),
        "state_epoch": state.state_epoch,
        "leader_epoch": state.leader_epoch,
        "in_flight_records": sums.records_by_state.total(),
        "records_by_state": dict(sums.records_by_state),
        "delivery_count_max": sums.delivery_count_max,
        "state_batches": state.batch_count,
        "delivery_complete_count": state.delivery_complete_count,
        "last_write": iso_time(state.last_write_ms),
        "last_write_ms": state.last_write_ms,
        "unreadable": state.unreadable,
    }


def iso_time(time_ms: int) -> str | None:
    """Format a time as ISO 8601 in UTC; return None for 0 and for times out of range."""
    if time_ms <= 0:
        return None
    try:
        moment = datetime.fromtimestamp(time_ms / 1000, UTC)
    except (OverflowError, ValueError, OSError):
        return None
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
