"""What one turn of a shard has decided, until it is appended."""

from collections.abc import Sequence

from coordinator.log.base import Unit
from coordinator.runtime.operations import Operation
from coordinator.shard import CoordinatorResult
from protocol.record_batch import RECORD_BYTES_IN_BATCH
from protocol.state_records import StateRecord

# Key and value of a record.
Encoded = tuple[bytes, bytes | None]


class CommitBatch:
    """What a turn has come to so far. A record of None is an update by a fast-path write."""

    __slots__ = ("accepts_writes", "append_bytes", "encoded", "now_ms", "records", "units")

    def __init__(self, now_ms: int, accepts_writes: bool) -> None:
        self.now_ms = now_ms
        self.accepts_writes = accepts_writes
        self.records: list[StateRecord | None] = []
        self.encoded: list[Encoded] = []
        # Records that are stored all or none; each of the others is stored or not by itself.
        self.units: list[Unit] = []
        self.append_bytes = 0

    def add(self, records: Sequence[StateRecord], encoded: Sequence[Encoded], *, is_unit: bool) -> None:
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


def is_unit(operation: Operation, result: CoordinatorResult) -> bool:
    """Tell whether all records are of one share-partition, as a client's are: they are stored all or none."""
    return all(record.key == operation.key for record in result.records)
