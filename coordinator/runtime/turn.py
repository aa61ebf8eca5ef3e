"""What one turn of a shard has decided, until it is appended."""

from protocol.state_records import StateRecord

# Key and value of a record.
Encoded = tuple[bytes, bytes | None]


class Turn:
    """What a turn has come to so far. A record of None is an update by a plain write."""

    __slots__ = ("accepts_writes", "append_bytes", "encoded", "now_ms", "records")

    def __init__(self, now_ms: int, accepts_writes: bool) -> None:
        self.now_ms = now_ms
        self.accepts_writes = accepts_writes
        self.records: list[StateRecord | None] = []
        self.encoded: list[Encoded] = []
        self.append_bytes = 0

    def add(self, record: StateRecord, encoded: Encoded) -> None:
        """Take a record that was applied."""
        self.records.append(record)
        self.encoded.append(encoded)
        self.append_bytes += size_bytes(encoded)


def size_bytes(encoded: Encoded) -> int:
    """Return the bytes of key and value together."""
    return len(encoded[0]) + len(encoded[1] or b"")
