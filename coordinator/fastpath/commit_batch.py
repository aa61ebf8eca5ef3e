# cython: annotation_typing=False
"""One run of the commit scheduler, and the records that it appends to a shard.

Compiled from this source where there is a compiler; see `coordinator.compiled_sources`.
"""

from collections.abc import Sequence
from typing import Any

from protocol.record_batch import RECORD_BYTES_IN_BATCH

Encoded = tuple[bytes, bytes | None]


class Commit:
    """What the batches of one run share: the time, whether the log takes writes, and where appends go.

    `gathered` is the `PendingEntries` of the log, or None.
    """

    __slots__ = ("accepts_writes", "gathered", "now_ms", "now_s")

    def __init__(self, now_ms: int, now_s: float, accepts_writes: bool, gathered: Any) -> None:
        self.now_ms = now_ms
        self.now_s = now_s
        self.accepts_writes = accepts_writes
        self.gathered = gathered


class CommitBatch:
    """Operations that are decided together, and the records that they made so far; made by `new_batch`.

    `done` operations of the first `last` are decided.  `units` are records that are stored all or none; each
    of the others is stored or not by itself.  A record that needs no settling by itself is None.
    """

    __slots__ = (
        "append_bytes",
        "bytes_max",
        "done",
        "encoded",
        "last",
        "now_ms",
        "operations",
        "records",
        "units",
    )

    operations: list[Any]
    last: int
    bytes_max: int
    now_ms: int
    done: int
    records: list[Any]
    encoded: list[Encoded]
    units: list[tuple[int, int]]
    append_bytes: int

    def has_room(self) -> bool:
        """Tell whether another operation may be decided."""
        return self.done < self.last and self.append_bytes < self.bytes_max

    def add(self, records: Sequence[Any], encoded: Sequence[Encoded], *, is_unit: bool) -> None:
        """Take the records of an operation, which were applied."""
        if is_unit and len(records) > 1:
            self.units.append((len(self.records), len(self.records) + len(records)))
        self.records += records
        self.encoded += encoded
        self.append_bytes += sum(map(size_bytes, encoded))


def new_batch(operations: list[Any], last: int, bytes_max: int, now_ms: int) -> CommitBatch:
    """Return a batch of the first `last` operations, none of which is decided yet."""
    batch = CommitBatch.__new__(CommitBatch)
    batch.operations, batch.last = operations, last
    batch.bytes_max, batch.now_ms = bytes_max, now_ms
    batch.done = batch.append_bytes = 0
    batch.records, batch.encoded, batch.units = [], [], []
    return batch


def size_bytes(encoded: Encoded) -> int:
    """Return the bytes of key and value together."""
    return len(encoded[0]) + len(encoded[1] or b"")


def unit_bytes(encoded: Sequence[Encoded]) -> int:
    """Return what a log takes of a unit at the most `record_bytes_max` of; see `StateLog.append`."""
    return sum(map(size_bytes, encoded)) + RECORD_BYTES_IN_BATCH * max(0, len(encoded) - 1)
