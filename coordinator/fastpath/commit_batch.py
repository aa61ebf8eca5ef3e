# cython: annotation_typing=False
"""The records that one commit appends to a shard, while they are collected.

Compiled from this source where there is a compiler; see `coordinator.compiled_sources`.
"""

from collections.abc import Sequence
from typing import Any

from protocol.record_batch import RECORD_BYTES_IN_BATCH

Encoded = tuple[bytes, bytes | None]


class CommitBatch:
    """Operations that are decided together, and the records that they made so far.

    `done` operations of the first `last` are decided.  A record that needs no settling by itself is None.
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

    def __init__(self, operations: list[Any], last: int, bytes_max: int, now_ms: int) -> None:
        self.operations = operations
        self.last = last
        self.bytes_max = bytes_max
        self.now_ms = now_ms
        self.done = 0
        self.records: list[Any] = []
        self.encoded: list[Encoded] = []
        # Records that are stored all or none; each of the others is stored or not by itself.
        self.units: list[tuple[int, int]] = []
        self.append_bytes = 0

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


def size_bytes(encoded: Encoded) -> int:
    """Return the bytes of key and value together."""
    return len(encoded[0]) + len(encoded[1] or b"")


def unit_bytes(encoded: Sequence[Encoded]) -> int:
    """Return what a log takes of a unit at the most `record_bytes_max` of; see `StateLog.append`."""
    return sum(map(size_bytes, encoded)) + RECORD_BYTES_IN_BATCH * max(0, len(encoded) - 1)
