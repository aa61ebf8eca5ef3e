"""Compute sums over the offset ranges of a share-partition.

The sums are computed range by range, so that the caller can yield to the event loop: a share-partition may
have two ranges or a million.
"""

from collections import Counter
from collections.abc import Iterator
from heapq import nsmallest

from coordinator.operate.admin.api_models import IncompleteRecord, OffsetRange
from coordinator.shard import ShareState
from protocol.state_batches import BATCH_BYTES, StateBatch, unpack

# KIP-932 and, for ARCHIVING, KIP-1191. The coordinator stores any number that a request contains.
DELIVERY_STATES = {0: "AVAILABLE", 1: "ACQUIRED", 2: "ACKNOWLEDGED", 3: "ARCHIVING", 4: "ARCHIVED"}
_COMPLETE = (2, 4)

# Maximum length of the list of ranges with the highest delivery counts.
_MOST_DELIVERED = 10

# Number of state batches unpacked at once; it takes far less than a millisecond.
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
    """Convert a state batch to an offset range."""
    return OffsetRange(
        first_offset=batch.first_offset,
        last_offset=batch.last_offset,
        records=_record_count(batch),
        delivery_state=delivery_state_name(batch.delivery_state),
        delivery_state_number=batch.delivery_state,
        delivery_count=batch.delivery_count,
    )


def delivery_state_name(delivery_state: int) -> str:
    """Return the name of a delivery state, or UNKNOWN."""
    return DELIVERY_STATES.get(delivery_state, "UNKNOWN")


class DeliverySums:
    """Sums over the offset ranges of a share-partition, which are added in ascending order."""

    def __init__(self, state: ShareState) -> None:
        self.records_by_state = Counter[str]()
        self.delivery_count_max = 0
        self._most: list[StateBatch] = []
        # The lowest offset that may be incomplete, and the first incomplete record.
        self._next_offset = state.start_offset
        self._incomplete: IncompleteRecord | None = None

    def add(self, batches: list[StateBatch]) -> None:
        """Add the next state batches."""
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

    def oldest_unfinished_record(self, state: ShareState, end_offset: int | None) -> IncompleteRecord | None:
        """Return the lowest incomplete offset at or above the start offset.

        An offset between ranges is incomplete: brokers do not write the state of a record during its first
        delivery. After the last range, a record exists only below the end offset.
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
