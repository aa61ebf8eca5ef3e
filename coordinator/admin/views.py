"""From states to answers: sums, names and times."""

from collections import Counter
from datetime import UTC, datetime
from heapq import nsmallest
from typing import Any
from uuid import UUID

from coordinator.admin.answers import (
    DeliveryRun,
    Group,
    Page,
    Shard,
    SharePartition,
    SharePartitionDetail,
    Unfinished,
)
from coordinator.admin.cluster import Facts
from coordinator.admin.owners import Owner
from coordinator.runtime import ShardView
from coordinator.shard import ShareState
from coordinator.topics import lag_of
from protocol.routing import state_partition
from protocol.state_batches import StateBatch, unpack
from protocol.state_records import SharePartitionKey, topic_id_text

# KIP-932 and, for ARCHIVING, KIP-1191. The coordinator stores whatever number it is sent.
DELIVERY_STATES = {0: "AVAILABLE", 1: "ACQUIRED", 2: "ACKNOWLEDGED", 3: "ARCHIVING", 4: "ARCHIVED"}
_COMPLETE = (2, 4)

# Runs that are shown as the most often delivered ones.
_MOST_DELIVERED = 10


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


def group_of(group_id: str, totals: GroupTotals) -> Group:
    """Make the answer for a group."""
    return Group(
        group=group_id,
        topics=len(totals.topic_ids),
        share_partitions=totals.share_partitions,
        state_batches=totals.state_batches,
        last_write=iso_time(totals.last_write_ms),
        last_write_ms=totals.last_write_ms,
    )


def shard_of(view: ShardView, *, here: bool, owner: Owner | None) -> Shard:
    """Make the answer for a shard."""
    return Shard(
        state_partition=view.state_partition,
        status=view.status,
        here=here,
        owner=owner,
        failure=view.failure,
        owner_epoch=view.owner_epoch,
        share_partitions=view.share_partitions,
        start_log_offset=view.start_log_offset,
        end_log_offset=view.end_log_offset,
        redundant_offset=view.redundant_offset,
        load_ms=view.load_ms,
        loaded_records=view.loaded_records,
        live_bytes=view.live_bytes,
        # Of a shard that is not loaded only the beginning of the log is known.
        log_records=max(0, view.end_log_offset - view.start_log_offset),
        prune_lag=max(0, view.redundant_offset - view.start_log_offset),
        state_batches=view.state_batches,
    )


def share_partition_of(
    key: SharePartitionKey, state: ShareState, state_partitions: int, facts: Facts
) -> SharePartition:
    """Make the answer for a share-partition in a list."""
    return SharePartition(**_share_partition(key, state, unpack(state.batches), state_partitions, facts))


def share_partition_detail(
    key: SharePartitionKey,
    state: ShareState,
    state_partitions: int,
    facts: Facts,
    in_flight: Page[DeliveryRun],
) -> SharePartitionDetail:
    """Make the answer for one share-partition, given a page of its in-flight runs."""
    batches = unpack(state.batches)
    end_offset = facts.end_offsets.get((key.topic_id, key.partition))
    return SharePartitionDetail(
        **_share_partition(key, state, batches, state_partitions, facts),
        leader_epoch_max=state.leader_epoch_max,
        snapshot_epoch=state.snapshot_epoch,
        snapshot_created_ms=state.create_timestamp,
        snapshot_written_ms=state.write_timestamp,
        updates_since_snapshot=state.updates,
        last_in_flight_offset=batches[-1].last_offset if batches else None,
        oldest_unfinished=_oldest_unfinished(state.start_offset, batches, end_offset),
        most_delivered=_most_delivered(batches),
        in_flight=in_flight,
    )


def _share_partition(
    key: SharePartitionKey,
    state: ShareState,
    batches: list[StateBatch],
    state_partitions: int,
    facts: Facts,
) -> dict[str, Any]:
    end_offset = facts.end_offsets.get((key.topic_id, key.partition))
    records_by_state = Counter[str]()
    for batch in batches:
        records_by_state[delivery_state_name(batch.delivery_state)] += _records(batch)
    return {
        "group": key.group_id,
        "topic": facts.names.get(key.topic_id),
        "topic_id": topic_id_text(key.topic_id),
        "topic_uuid": str(UUID(bytes=key.topic_id)),
        "partition": key.partition,
        "state_partition": state_partition(key, state_partitions),
        "start_offset": state.start_offset,
        "end_offset": end_offset,
        "lag": lag_of(state.start_offset, state.delivery_complete_count, end_offset),
        "state_epoch": state.state_epoch,
        "leader_epoch": state.leader_epoch,
        "in_flight_records": records_by_state.total(),
        "records_by_state": dict(records_by_state),
        "delivery_count_max": max((batch.delivery_count for batch in batches), default=0),
        "state_batches": len(batches),
        "delivery_complete_count": state.delivery_complete_count,
        "last_write": iso_time(state.last_write_ms),
        "last_write_ms": state.last_write_ms,
        "unreadable": state.unreadable,
    }


def _oldest_unfinished(
    start_offset: int, batches: list[StateBatch], end_offset: int | None
) -> Unfinished | None:
    """Return the lowest offset from the start offset on whose delivery is not complete.

    An offset between the runs counts: brokers note nothing of a record that is with its first consumer.
    Behind the last run there is only a record if the end offset says so.
    """
    if start_offset < 0:
        return None
    offset = start_offset
    for batch in batches:
        if batch.first_offset > offset:
            return Unfinished(offset=offset, delivery_state=None, delivery_count=0)
        if batch.delivery_state not in _COMPLETE:
            return Unfinished(
                offset=offset,
                delivery_state=delivery_state_name(batch.delivery_state),
                delivery_count=batch.delivery_count,
            )
        offset = batch.last_offset + 1
    if end_offset is None or offset >= end_offset:
        return None
    return Unfinished(offset=offset, delivery_state=None, delivery_count=0)


def _most_delivered(batches: list[StateBatch]) -> list[DeliveryRun]:
    again = (batch for batch in batches if batch.delivery_count > 1)
    most = nsmallest(_MOST_DELIVERED, again, key=lambda batch: (-batch.delivery_count, batch.first_offset))
    return [run_of(batch) for batch in most]


def run_of(batch: StateBatch) -> DeliveryRun:
    """Make the answer for a run of offsets."""
    return DeliveryRun(
        first_offset=batch.first_offset,
        last_offset=batch.last_offset,
        records=_records(batch),
        delivery_state=delivery_state_name(batch.delivery_state),
        delivery_state_number=batch.delivery_state,
        delivery_count=batch.delivery_count,
    )


def delivery_state_name(delivery_state: int) -> str:
    """Name a delivery state; UNKNOWN for a number that Kafka has no name for."""
    return DELIVERY_STATES.get(delivery_state, "UNKNOWN")


def iso_time(time_ms: int) -> str | None:
    """Write a time as ISO 8601 in UTC; None for 0 and for what is no time of this age of the world."""
    if time_ms <= 0:
        return None
    try:
        moment = datetime.fromtimestamp(time_ms / 1000, UTC)
    except (OverflowError, ValueError, OSError):
        return None
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _records(batch: StateBatch) -> int:
    return batch.last_offset - batch.first_offset + 1
