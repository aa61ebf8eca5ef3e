"""From states to answers: sums, names and times."""

from collections import Counter
from datetime import UTC, datetime
from uuid import UUID

from coordinator.admin.answers import DeliveryRun, Group, Page, SharePartition, SharePartitionDetail
from coordinator.shard import ShareState
from protocol.routing import state_partition
from protocol.state_batches import StateBatch, unpack
from protocol.state_records import SharePartitionKey, topic_id_text

# KIP-932 and, for ARCHIVING, KIP-1191. The coordinator stores whatever number it is sent.
DELIVERY_STATES = {0: "AVAILABLE", 1: "ACQUIRED", 2: "ACKNOWLEDGED", 3: "ARCHIVING", 4: "ARCHIVED"}


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


def share_partition_of(key: SharePartitionKey, state: ShareState, state_partitions: int) -> SharePartition:
    """Make the answer for a share-partition in a list."""
    batches = unpack(state.batches)
    return SharePartition(
        group=key.group_id,
        topic_id=topic_id_text(key.topic_id),
        topic_uuid=str(UUID(bytes=key.topic_id)),
        partition=key.partition,
        state_partition=state_partition(key, state_partitions),
        start_offset=state.start_offset,
        state_epoch=state.state_epoch,
        leader_epoch=state.leader_epoch,
        in_flight_records=sum(map(_records, batches)),
        state_batches=len(batches),
        delivery_complete_count=state.delivery_complete_count,
        last_write=iso_time(state.last_write_ms),
        last_write_ms=state.last_write_ms,
        unreadable=state.unreadable,
    )


def share_partition_detail(
    key: SharePartitionKey, state: ShareState, state_partitions: int, *, limit: int, offset: int
) -> SharePartitionDetail:
    """Make the answer for one share-partition, with a page of its in-flight runs."""
    batches = unpack(state.batches)
    records_by_state: Counter[str] = Counter()
    for batch in batches:
        records_by_state[delivery_state_name(batch.delivery_state)] += _records(batch)
    runs = [
        DeliveryRun(
            first_offset=batch.first_offset,
            last_offset=batch.last_offset,
            records=_records(batch),
            delivery_state=delivery_state_name(batch.delivery_state),
            delivery_state_number=batch.delivery_state,
            delivery_count=batch.delivery_count,
        )
        for batch in batches[offset : offset + limit]
    ]
    return SharePartitionDetail(
        **share_partition_of(key, state, state_partitions).model_dump(),
        leader_epoch_max=state.leader_epoch_max,
        snapshot_epoch=state.snapshot_epoch,
        snapshot_created_ms=state.create_timestamp,
        snapshot_written_ms=state.write_timestamp,
        updates_since_snapshot=state.updates,
        records_by_state=dict(records_by_state),
        in_flight=Page(items=runs, total=len(batches), limit=limit, offset=offset),
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
