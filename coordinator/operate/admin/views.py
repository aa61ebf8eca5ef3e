"""Convert the states of share-partitions and groups to API responses.

A share-partition may have a million offset ranges. Therefore, the caller adds them to `DeliverySums` in
slices, and yields to the event loop in between.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from heapq import nsmallest
from typing import Any
from uuid import UUID

from coordinator.cluster.topics import compute_lag
from coordinator.observe.signals import GroupSignals, Problem
from coordinator.operate.admin.api_models import Group, IncompleteRecord, OffsetRange
from coordinator.operate.admin.cluster_info import ClusterInfo
from coordinator.process.clock import format_utc
from coordinator.shard import ShareState
from protocol.routing import state_partition
from protocol.state_batches import BATCH_BYTES, StateBatch, delivery_state_name, unpack
from protocol.state_records import SharePartitionKey, topic_id_text

# The delivery states of complete records: ACKNOWLEDGED and ARCHIVED.
_COMPLETE = (2, 4)

# Maximum length of the list of ranges with the highest delivery counts.
_MOST_DELIVERED = 10

# Number of state batches unpacked at once; unpacking them takes far less than a millisecond.
_SLICE = 250


def unpack_slices(packed: bytes, offset: int = 0, limit: int | None = None) -> Iterator[list[StateBatch]]:
    """Unpack `limit` state batches from `offset` on, in slices."""
    end = len(packed) if limit is None else min(len(packed), (offset + limit) * BATCH_BYTES)
    for start in range(offset * BATCH_BYTES, end, _SLICE * BATCH_BYTES):
        yield unpack(packed[start : min(end, start + _SLICE * BATCH_BYTES)])


def last_offset(packed: bytes) -> int | None:
    """Return the highest offset that has a delivery state, or None."""
    return unpack(packed[-BATCH_BYTES:])[0].last_offset if packed else None


def make_offset_range(batch: StateBatch) -> OffsetRange:
    return OffsetRange(
        first_offset=batch.first_offset,
        last_offset=batch.last_offset,
        records=_record_count(batch),
        delivery_state=delivery_state_name(batch.delivery_state),
        delivery_state_number=batch.delivery_state,
        delivery_count=batch.delivery_count,
    )


class DeliverySums:
    """Sums over the offset ranges of a share-partition, which are added in ascending order."""

    def __init__(self, state: ShareState) -> None:
        self.records_by_state = Counter[str]()
        self.delivery_count_max = 0
        self._most: list[StateBatch] = []
        # All records below this offset are acknowledged or archived.
        self._next_offset = state.start_offset
        # The first record that is neither acknowledged nor archived.
        self._incomplete: IncompleteRecord | None = None

    def add(self, batches: list[StateBatch]) -> None:
        for batch in batches:
            self.records_by_state[delivery_state_name(batch.delivery_state)] += _record_count(batch)
            if self._incomplete is None:
                self._find_incomplete_record(batch)
        again = [batch for batch in batches if batch.delivery_count > 1]
        self._most = nsmallest(
            _MOST_DELIVERED,
            self._most + again,
            key=lambda batch: (-batch.delivery_count, batch.first_offset),
        )
        self.delivery_count_max = max(self.delivery_count_max, *(batch.delivery_count for batch in batches))

    def _find_incomplete_record(self, batch: StateBatch) -> None:
        if batch.first_offset > self._next_offset:
            self._incomplete = IncompleteRecord(
                offset=self._next_offset, delivery_state=None, delivery_count=0
            )
        elif batch.delivery_state not in _COMPLETE:
            self._incomplete = IncompleteRecord(
                offset=self._next_offset,
                delivery_state=delivery_state_name(batch.delivery_state),
                delivery_count=batch.delivery_count,
            )
        else:
            self._next_offset = batch.last_offset + 1

    def oldest_incomplete_record(self, state: ShareState, end_offset: int | None) -> IncompleteRecord | None:
        """Return the lowest incomplete offset at or above the start offset.

        An offset between ranges is incomplete: brokers do not write the state of a record during its first
        delivery. After the last range, an incomplete record exists only below the end offset.
        """
        if state.start_offset < 0:
            return None
        if self._incomplete is not None or end_offset is None or self._next_offset >= end_offset:
            return self._incomplete
        return IncompleteRecord(offset=self._next_offset, delivery_state=None, delivery_count=0)

    def most_delivered_ranges(self) -> list[OffsetRange]:
        """Return the ranges that were delivered more than once, most often delivered first."""
        return [make_offset_range(batch) for batch in self._most]


def _record_count(batch: StateBatch) -> int:
    return batch.last_offset - batch.first_offset + 1


class GroupTotals:
    """Sums over the share-partitions of one group."""

    __slots__ = ("last_write_ms", "share_partitions", "state_batches", "topic_ids")

    def __init__(self) -> None:
        self.topic_ids: set[bytes] = set()
        self.share_partitions = 0
        self.state_batches = 0
        self.last_write_ms = 0

    def add(self, key: SharePartitionKey, state: ShareState) -> None:
        self.topic_ids.add(key.topic_id)
        self.share_partitions += 1
        self.state_batches += state.batch_count
        self.last_write_ms = max(self.last_write_ms, state.last_write_ms)


def make_group(group_id: str, totals: GroupTotals, all_signals: Mapping[str, GroupSignals]) -> Group:
    """Create the response for a group. A new group has no signals until the monitor's next pass."""
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


def share_partition_fields(
    key: SharePartitionKey,
    state: ShareState,
    sums: DeliverySums,
    state_partitions: int,
    cluster_info: ClusterInfo,
) -> dict[str, Any]:
    """Return the fields of the response for a share-partition in a list."""
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


def share_partition_detail_fields(
    state: ShareState, sums: DeliverySums, end_offset: int | None
) -> dict[str, Any]:
    """Return the further fields of the response for one share-partition, without its offset ranges."""
    return {
        "leader_epoch_max": state.leader_epoch_max,
        "snapshot_epoch": state.snapshot_epoch,
        "snapshot_created_ms": state.create_timestamp,
        "snapshot_written_ms": state.write_timestamp,
        "updates_since_snapshot": state.updates,
        "last_in_flight_offset": last_offset(state.batches),
        "oldest_incomplete": sums.oldest_incomplete_record(state, end_offset),
        "most_delivered": sums.most_delivered_ranges(),
    }


def iso_time(time_ms: int | None) -> str | None:
    """Format a time as ISO 8601 in UTC; return None for None, 0 and times out of range."""
    if time_ms is None or time_ms <= 0:
        return None
    try:
        return format_utc(time_ms / 1000)
    except (OverflowError, ValueError, OSError):
        return None
