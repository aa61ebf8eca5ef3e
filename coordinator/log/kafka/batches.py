"""Encode the batches of an owner, and split records into batches that the topic accepts.

An append is usually one batch. A broker rejects a batch above the topic's `max.message.bytes`. Many snapshots
at once, or delayed writes of a shard, can exceed that limit. An append above that limit is sent as several
batches. A unit is never split.
"""

from collections.abc import Iterator, Sequence

from coordinator.fastpath import encode_batch
from coordinator.log.base import Unit
from coordinator.log.kafka.ownership import Ownership
from protocol.record_batch import HEADER_BYTES, RECORD_BYTES_IN_BATCH

Record = tuple[bytes, bytes | None]


def record_bytes_max(batch_bytes_max: int) -> int:
    """Return the maximum size of a record's key and value in a batch of at most `batch_bytes_max` bytes."""
    return batch_bytes_max - HEADER_BYTES - RECORD_BYTES_IN_BATCH


def encode_owner_batch(ownership: Ownership, records: Sequence[Record], timestamp_ms: int) -> bytes:
    """Return the owner's next batch, with its producer id, producer epoch and next sequence."""
    batch: bytes = encode_batch(
        0,
        timestamp_ms,
        records,
        ownership.headers,
        0,
        ownership.producer_id,
        ownership.producer_epoch,
        ownership.sequence,
    )
    return batch


def split_records(records: Sequence[Record], units: Sequence[Unit], bytes_max: int) -> Iterator[list[Record]]:
    """Yield portions of the records, each at most `bytes_max` as a batch.

    A larger unit is a portion by itself.
    """
    portion: list[Record] = []
    size_bytes = HEADER_BYTES
    for begin, end in _cover_records_with_units(len(records), units):
        unit = records[begin:end]
        unit_bytes = sum(RECORD_BYTES_IN_BATCH + len(key) + len(value or b"") for key, value in unit)
        if portion and size_bytes + unit_bytes > bytes_max:
            yield portion
            portion, size_bytes = [], HEADER_BYTES
        portion += unit
        size_bytes += unit_bytes
    yield portion


def _cover_records_with_units(count: int, units: Sequence[Unit]) -> Iterator[Unit]:
    """Yield the units, and a separate unit for each record that belongs to none."""
    at = 0
    for begin, end in units:
        yield from zip(range(at, begin), range(at + 1, begin + 1), strict=True)
        yield begin, end
        at = end
    yield from zip(range(at, count), range(at + 1, count + 1), strict=True)
