# cython: annotation_typing=False
"""The batches of a commit, and the base classes of operations, queues and the write kernel.

Compiled callers call the methods of these classes directly, without attribute look-ups.

If a C compiler is available, this source is compiled; see `coordinator.compiled_sources`.
"""

from collections.abc import Sequence
from typing import Any

from protocol.record_batch import RECORD_BYTES_IN_BATCH

Encoded = tuple[bytes, bytes | None]


class CommitContext:
    """Values for all batches of one run of the commit scheduler.

    `gathered` is the `PendingEntries` of the log, or None. `work_left` is the work that the run may still do,
    in units of one write to a small state (2 µs); the limit keeps the event loop responsive. `decided` is the
    number of operations executed so far.
    """

    def __init__(
        self, now_ms: int, now_s: float, accepts_writes: bool, gathered: Any, work_left: int
    ) -> None:
        self.work_left = work_left
        self.decided = 0
        self.now_ms = now_ms
        self.now_s = now_s
        self.accepts_writes = accepts_writes
        self.gathered = gathered


class CommitBatch:
    """Operations whose records are appended together, and the records so far; created by `new_batch`.

    The batch executes the first `last` of `operations` while `work_left` (see `CommitContext`) is positive;
    `done` is the number of those executed so far. A unit is a range of `records` that the log stores
    completely or not at all; the log stores each other record independently. An element of `records` is None
    if the write kernel has applied the record and nothing has to be done when the record is durable.
    """

    operations: list[Any]
    last: int
    work_left: int
    bytes_max: int
    now_ms: int
    done: int
    records: list[Any]
    encoded: list[Encoded]
    units: list[tuple[int, int]]
    append_bytes: int

    def may_continue(self) -> bool:
        """Return whether the batch may execute another operation."""
        return self.done < self.last and self.append_bytes < self.bytes_max and self.work_left > 0

    def add(self, records: Sequence[Any], encoded: Sequence[Encoded], *, is_unit: bool) -> None:
        """Add the records of an operation; the caller has applied them."""
        if is_unit and len(records) > 1:
            self.units.append((len(self.records), len(self.records) + len(records)))
        self.records += records
        self.encoded += encoded
        self.append_bytes += sum(map(size_bytes, encoded))


def new_batch(operations: list[Any], last: int, work_left: int, bytes_max: int, now_ms: int) -> CommitBatch:
    """Return a commit batch for the first `last` of `operations`, without records yet."""
    batch = CommitBatch.__new__(CommitBatch)
    batch.operations, batch.last, batch.work_left = operations, last, work_left
    batch.bytes_max, batch.now_ms = bytes_max, now_ms
    batch.done = batch.append_bytes = 0
    batch.records, batch.encoded, batch.units = [], [], []
    return batch


def size_bytes(encoded: Encoded) -> int:
    """Return the size of a record's key and value in bytes."""
    return len(encoded[0]) + len(encoded[1] or b"")


def unit_bytes(encoded: Sequence[Encoded]) -> int:
    """Return the size of a unit in bytes, which must not exceed `record_bytes_max`; see `StateLog.append`."""
    return sum(map(size_bytes, encoded)) + RECORD_BYTES_IN_BATCH * max(0, len(encoded) - 1)


class QueuedOperation:
    """An operation; `writes` is true if a client's request may create a record.

    An operation holds its computed response until the append is durable.
    """

    __slots__ = ("writes",)

    def answer_decided(self) -> None:
        """Send the response that was computed before the append."""
        raise AssertionError("an operation must define how it is answered")


class WriteDecider:
    """Executes consecutive writes of a commit batch; implemented by `fastpath.compiled.WriteKernel`."""

    __slots__ = ()

    def decide_writes(self, shard: Any, batch: CommitBatch, waiting: list[Any]) -> None:
        """Execute the next operations of a batch, up to the first that is not a write or is refused."""
        raise AssertionError("a write decider must define how it decides")


class OperationQueue:
    """A queue of operations whose batches are scheduled and appended."""

    __slots__ = ()

    def submit(self, operation: Any) -> None:
        """Accept an operation; it gets exactly one response, during this call or later."""
        raise AssertionError("a queue must define how operations are submitted")

    def state_to_read(self, key: Any) -> bytes | None:
        """Return the packed state of a share-partition if memory may answer a read of it now."""
        raise AssertionError("a queue must define which reads memory may answer")

    def process_batch(self, commit: CommitContext) -> None:
        """Execute the queued operations and append their records; an exception is a defect."""
        raise AssertionError("a queue must define how a batch is processed")

    def batch_failed(self, failure: Exception) -> None:
        """Recover after `process_batch` raised this exception."""
        raise AssertionError("a queue must define how it recovers")

    def on_append_done(self, base_offset: int, error: Any) -> None:
        """Complete an append; `error` is a LogError or None."""
        raise AssertionError("a queue must define what follows an append")
