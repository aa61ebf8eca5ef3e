"""Divide the records of an append into the batches that a topic takes.

Nearly always that is one batch.  A broker refuses a batch above `max.message.bytes` of the topic as a whole,
and would do so each time: many snapshots at once, or the writes of a shard that had to wait, can come to
that.  Such an append is sent as several batches, each when the one before it was acknowledged.  No unit is
divided.  `done` is called after the last batch, or after the first that fails: then the batches before it
are in the log, and the shard has to be loaded again before anything else is appended.
"""

from collections.abc import Callable, Iterator, Sequence

from coordinator.errors import LogError, LogOutcomeUnknown, LogUnavailable
from coordinator.log.base import AppendCallback, Unit
from coordinator.log.kafka.ownership import Ownership
from protocol.record_batch import HEADER_BYTES, RECORD_BYTES_IN_BATCH, encode_batch

Record = tuple[bytes, bytes | None]


def record_bytes_max(batch_bytes_max: int) -> int:
    """Return the most bytes of key and value of a record whose batch takes at most so many."""
    return batch_bytes_max - HEADER_BYTES - RECORD_BYTES_IN_BATCH


def encode_owner_batch(ownership: Ownership, records: Sequence[Record], timestamp_ms: int) -> bytes:
    """Return the batch in which an owner appends records next."""
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
    """Divide records between units into runs of at most `bytes_max` as a batch; a larger unit goes alone."""
    portion: list[Record] = []
    size_bytes = HEADER_BYTES
    for begin, end in _all_units(len(records), units):
        unit = records[begin:end]
        unit_bytes = sum(RECORD_BYTES_IN_BATCH + len(key) + len(value or b"") for key, value in unit)
        if portion and size_bytes + unit_bytes > bytes_max:
            yield portion
            portion, size_bytes = [], HEADER_BYTES
        portion += unit
        size_bytes += unit_bytes
    yield portion


def _all_units(count: int, units: Sequence[Unit]) -> Iterator[Unit]:
    """Yield the units, and each record between them as a unit of its own."""
    at = 0
    for begin, end in units:
        yield from zip(range(at, begin), range(at + 1, begin + 1), strict=True)
        yield begin, end
        at = end
    yield from zip(range(at, count), range(at + 1, count + 1), strict=True)


class BatchedAppend:
    """One append, in as many batches as it takes; `done` is called once, as by an `Appender`.

    `send` is that of an `Appender`; `record_appended` is told the place and the bytes of each batch in the
    log.
    """

    def __init__(
        self,
        ownership: Ownership,
        timestamp_ms: int,
        *,
        send: Callable[[Ownership, bytes, int, AppendCallback], None],
        landed: Callable[[int, int], None],
        done: AppendCallback,
    ) -> None:
        self._ownership = ownership
        self._timestamp_ms = timestamp_ms
        self._send = send
        self._record_result = landed
        self._done = done
        self._base_offset = ownership.next_offset
        self._batch_bytes = 0
        self._begun = False
        self._waiting: Iterator[list[Record]] = iter(())

    def begin(self, records: Sequence[Record], units: Sequence[Unit], bytes_max: int) -> None:
        """Send the first batch."""
        batch = encode_owner_batch(self._ownership, records, self._timestamp_ms)
        if len(batch) <= bytes_max:
            self._dispatch(batch, len(records))
            return
        self._waiting = split_records(records, units, bytes_max)
        self._next()

    def _next(self) -> bool:
        """Send the next batch; False if there is none."""
        records = next(self._waiting, None)
        if records is not None:
            self._dispatch(encode_owner_batch(self._ownership, records, self._timestamp_ms), len(records))
        return records is not None

    def _dispatch(self, batch: bytes, count: int) -> None:
        self._batch_bytes = len(batch)
        self._send(self._ownership, batch, count, self._settle)

    def _settle(self, base_offset: int, error: LogError | None) -> None:
        if error is None:
            self._record_result(base_offset, self._batch_bytes)
            self._begun = True
            if not self._next():
                self._done(self._base_offset, None)
            return
        if self._begun and isinstance(error, LogUnavailable):
            # That nothing was appended is true of this batch only.
            error = self._ownership.lost = LogOutcomeUnknown(f"a part of the append is in the log: {error}")
        self._done(self._base_offset, error)
