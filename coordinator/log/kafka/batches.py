"""Split the records of an append into batches that the topic accepts.

An append is usually one batch. A broker rejects a batch above the topic's `max.message.bytes`. Many snapshots
at once, or delayed writes of a shard, can exceed that limit. Such an append is sent as several batches; each
waits until the previous one is acknowledged. A unit is never split.

`done` is called after the last batch, or after the first one that fails. If a later batch fails, the earlier
ones are in the log. Then the shard must be loaded again before the next append.
"""

from collections.abc import Callable, Iterator, Sequence

from coordinator.errors import LogError, LogOutcomeUnknown, LogUnavailable
from coordinator.log.base import AppendCallback, Unit
from coordinator.log.kafka.ownership import Ownership
from protocol.record_batch import HEADER_BYTES, RECORD_BYTES_IN_BATCH, encode_batch

Record = tuple[bytes, bytes | None]


def record_bytes_max(batch_bytes_max: int) -> int:
    """Return the maximum size of a record's key and value in a batch of at most `batch_bytes_max` bytes."""
    return batch_bytes_max - HEADER_BYTES - RECORD_BYTES_IN_BATCH


def encode_owner_batch(ownership: Ownership, records: Sequence[Record], timestamp_ms: int) -> bytes:
    """Return the owner's next batch, with its producer id, producer epoch and next sequence."""
    return encode_batch(
        0,
        timestamp_ms,
        records,
        ownership.headers,
        producer_id=ownership.producer_id,
        producer_epoch=ownership.producer_epoch,
        base_sequence=ownership.sequence,
    )


def split_records(records: Sequence[Record], units: Sequence[Unit], bytes_max: int) -> Iterator[list[Record]]:
    """Yield portions of the records, each at most `bytes_max` as a batch.

    A larger unit is a portion by itself.
    """
    portion: list[Record] = []
    size_bytes = HEADER_BYTES
    for begin, end in _complete_units(len(records), units):
        unit = records[begin:end]
        unit_bytes = sum(RECORD_BYTES_IN_BATCH + len(key) + len(value or b"") for key, value in unit)
        if portion and size_bytes + unit_bytes > bytes_max:
            yield portion
            portion, size_bytes = [], HEADER_BYTES
        portion += unit
        size_bytes += unit_bytes
    yield portion


def _complete_units(count: int, units: Sequence[Unit]) -> Iterator[Unit]:
    """Yield the units, and each record outside of them as a separate unit."""
    at = 0
    for begin, end in units:
        yield from zip(range(at, begin), range(at + 1, begin + 1), strict=True)
        yield begin, end
        at = end
    yield from zip(range(at, count), range(at + 1, count + 1), strict=True)


class BatchedAppend:
    """One append, sent as one or more batches; `done` is called once, as by an `Appender`.

    `send` is `Appender.append`. `landed` is called with the offset and the bytes of each
    batch in the log.
    """

    def __init__(
        self,
        ownership: Ownership,
        timestamp_ms: int,
        *,
        send: Callable[[Ownership, bytes, int, AppendCallback], None],
        landed: Callable[[int, bytes], None],
        done: AppendCallback,
    ) -> None:
        self._ownership = ownership
        self._timestamp_ms = timestamp_ms
        self._send = send
        self._record_result = landed
        self._done = done
        self._base_offset = ownership.next_offset
        self._batch = b""
        self._begun = False
        self._waiting: Iterator[list[Record]] = iter(())

    def begin(self, records: Sequence[Record], units: Sequence[Unit], bytes_max: int) -> None:
        """Send the first batch."""
        batch = encode_owner_batch(self._ownership, records, self._timestamp_ms)
        if len(batch) <= bytes_max:
            self._send_batch(batch, len(records))
            return
        self._waiting = split_records(records, units, bytes_max)
        self._send_next_batch()

    def _send_next_batch(self) -> bool:
        """Send the next batch; return False if there is none."""
        records = next(self._waiting, None)
        if records is not None:
            self._send_batch(encode_owner_batch(self._ownership, records, self._timestamp_ms), len(records))
        return records is not None

    def _send_batch(self, batch: bytes, count: int) -> None:
        self._batch = batch
        self._send(self._ownership, batch, count, self._settle)

    def _settle(self, base_offset: int, error: LogError | None) -> None:
        if error is None:
            self._record_result(base_offset, self._batch)
            self._begun = True
            if not self._send_next_batch():
                self._done(self._base_offset, None)
            return
        if self._begun and isinstance(error, LogUnavailable):
            # The error covers only this batch; earlier batches are in the log.
            error = self._ownership.lost = LogOutcomeUnknown(f"a part of the append is in the log: {error}")
        self._done(self._base_offset, error)
