"""Track the first needed offset of each share-partition, and the redundant offset of the shard.

A share-partition needs its latest snapshot and all later records.  The redundant offset of the shard is the
least first needed offset of its share-partitions.  Each packed state carries its own first needed offset.
Snapshots arrive in log order, and a snapshot moves its state to the end of the shard's dictionary.  The first
durable state in the dictionary therefore has the least offset, and no search is needed.  States without a
durable record may be anywhere in the dictionary.

Source: ShareCoordinatorOffsetsManager of Kafka 4.4, with two intended differences.  Kafka keeps a tombstone
until the next record; we treat it as redundant at once.  Kafka ignores a share-partition that begins with an
update, and may prune records of this share-partition; we treat that update as its first needed record.
"""

from collections.abc import Iterator

from coordinator.shard.packed_state import NOT_DURABLE, first_needed_offset, with_first_needed_offset
from protocol.state_records import SharePartitionKey


class PruningOffsets:
    """The order of a shard's states by first needed offset, oldest first.

    All records below `end_log_offset` are durable.
    """

    __slots__ = ("_ending", "_states", "end_log_offset")

    def __init__(self, states: dict[SharePartitionKey, bytes]) -> None:
        """Order these packed states in place; the `Shard` owns their contents."""
        self._states = states
        # First needed offsets of deleted share-partitions whose tombstone is not durable yet.
        self._ending: dict[SharePartitionKey, int] = {}
        self.end_log_offset = 0

    def record_snapshot(self, key: SharePartitionKey, log_offset: int) -> None:
        """Record a durable snapshot: earlier records of the share-partition are redundant."""
        state = self._states.pop(key, None)
        if state is None:
            self._ending[key] = log_offset
        else:
            self._states[key] = with_first_needed_offset(state, log_offset)
        self.end_log_offset = log_offset + 1

    def record_update(self, key: SharePartitionKey, log_offset: int) -> None:
        """Record a durable update: earlier records of the share-partition are still needed."""
        state = self._states.get(key)
        if state is None:
            self._ending.setdefault(key, log_offset)
        elif first_needed_offset(state) == NOT_DURABLE:
            self.record_snapshot(key, log_offset)
        self.end_log_offset = log_offset + 1

    def record_pending_delete(self, key: SharePartitionKey, state: bytes) -> None:
        """Record that a state was deleted by a tombstone that is not durable yet."""
        if first_needed_offset(state) != NOT_DURABLE:
            self._ending[key] = first_needed_offset(state)

    def record_delete(self, key: SharePartitionKey, log_offset: int) -> None:
        """Record a durable tombstone: earlier records of the share-partition are redundant."""
        self._ending.pop(key, None)
        self.end_log_offset = log_offset + 1

    @property
    def redundant_offset(self) -> int:
        """The log offset below which all records may be deleted; 0 if none may."""
        oldest = min(self._ending.values(), default=self.end_log_offset)
        for state in self._states.values():
            if first_needed_offset(state) != NOT_DURABLE:
                return min(oldest, first_needed_offset(state))
        return oldest

    def keys_needed_below(self, log_offset: int) -> Iterator[SharePartitionKey]:
        """Yield the share-partitions that need records below a log offset, oldest first."""
        for key, state in self._states.items():
            if first_needed_offset(state) >= log_offset:
                return
            if first_needed_offset(state) != NOT_DURABLE:
                yield key
