"""The pruning frontier: below which log offset no record of a shard is needed any more.

A share-partition needs its latest snapshot and what follows it; the frontier is the least of those
offsets.  Snapshots arrive in log order, so a dictionary in order of insertion has the least one first
and nothing is ever searched.

Source: ShareCoordinatorOffsetsManager of Kafka 4.4.  Two differences on purpose: a tombstone stops
counting at once (Kafka counts it until the next record), and a share-partition that is first seen by
an update counts from that update (Kafka leaves it out, and may prune what its state was built from).
"""

from collections.abc import Iterator

from protocol.state_records import SharePartitionKey


class Frontier:
    """Latest needed log offset per share-partition, oldest first. Held by one `Shard`."""

    def __init__(self) -> None:
        self._needed_from: dict[SharePartitionKey, int] = {}
        self._behind_last = 0

    def snapshotted(self, key: SharePartitionKey, log_offset: int) -> None:
        """Note a snapshot: earlier records of the share-partition are not needed any more."""
        self._needed_from.pop(key, None)
        self._needed_from[key] = log_offset
        self._behind_last = log_offset + 1

    def updated(self, key: SharePartitionKey, log_offset: int) -> None:
        """Note a record that needs the ones before it."""
        if key not in self._needed_from:
            self._needed_from[key] = log_offset
        self._behind_last = log_offset + 1

    def deleted(self, key: SharePartitionKey, log_offset: int) -> None:
        """Note a tombstone: no record of the share-partition is needed any more."""
        self._needed_from.pop(key, None)
        self._behind_last = log_offset + 1

    def adopted(self, key: SharePartitionKey, log_offset: int) -> None:
        """Note from where on a share-partition needs its records; what follows needs no earlier ones."""
        self._needed_from.pop(key, None)
        self._needed_from[key] = log_offset

    def needed_from(self, key: SharePartitionKey) -> int:
        """Return the log offset from which a share-partition that has state needs its records."""
        return self._needed_from[key]

    def reached(self, end_log_offset: int) -> None:
        """Note that the records below a log offset change nothing but what was noted."""
        self._behind_last = end_log_offset

    @property
    def redundant_offset(self) -> int:
        """The log offset below which every record may be dropped; 0 when none may."""
        for log_offset in self._needed_from.values():
            return log_offset
        return self._behind_last

    def needed_below(self, log_offset: int) -> Iterator[SharePartitionKey]:
        """Yield the share-partitions that need records below a log offset, oldest first."""
        for key, needed_from in self._needed_from.items():
            if needed_from >= log_offset:
                return
            yield key
