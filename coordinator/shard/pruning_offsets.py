"""Track the first needed offset of each share-partition, and the redundant offset of the shard.

A share-partition needs its latest snapshot and what follows it; the redundant offset is the least of those
offsets.  Each packed state carries its own, and snapshots arrive in log order: what was snapshotted moves to
the end of the shard's dictionary of states, so that the least offset is at its beginning and nothing is ever
searched.  States of which no record is durable yet may stand anywhere between.

Source: ShareCoordinatorOffsetsManager of Kafka 4.4.  Two differences on purpose: a tombstone stops
counting at once (Kafka counts it until the next record), and a share-partition that is first seen by
an update counts from that update (Kafka leaves it out, and may prune what its state was built from).
"""

from collections.abc import Iterator

from coordinator.shard.packed_state import NOT_DURABLE, first_needed_offset, with_first_needed_offset
from protocol.state_records import SharePartitionKey


class PruningOffsets:
    """The order of a shard's states by the log offset from which each is needed, oldest first.

    All records below `end_log_offset` are durable.
    """

    __slots__ = ("_ending", "_states", "end_log_offset")

    def __init__(self, states: dict[SharePartitionKey, bytes]) -> None:
        """Keep the order of these packed states; their `Shard` keeps what they say."""
        self._states = states
        # What share-partitions that were deleted need until their tombstone is durable.
        self._ending: dict[SharePartitionKey, int] = {}
        self.end_log_offset = 0

    def record_snapshot(self, key: SharePartitionKey, log_offset: int) -> None:
        """Note a snapshot: earlier records of the share-partition are not needed any more."""
        state = self._states.pop(key, None)
        if state is None:
            self._ending[key] = log_offset
        else:
            self._states[key] = with_first_needed_offset(state, log_offset)
        self.end_log_offset = log_offset + 1

    def record_update(self, key: SharePartitionKey, log_offset: int) -> None:
        """Note a record that needs the ones before it."""
        state = self._states.get(key)
        if state is None:
            self._ending.setdefault(key, log_offset)
        elif first_needed_offset(state) == NOT_DURABLE:
            self.record_snapshot(key, log_offset)
        self.end_log_offset = log_offset + 1

    def record_pending_delete(self, key: SharePartitionKey, state: bytes) -> None:
        """Note that a state is deleted by a tombstone, which is not durable yet."""
        if first_needed_offset(state) != NOT_DURABLE:
            self._ending[key] = first_needed_offset(state)

    def record_delete(self, key: SharePartitionKey, log_offset: int) -> None:
        """Note a tombstone: no record of the share-partition before it is needed any more."""
        self._ending.pop(key, None)
        self.end_log_offset = log_offset + 1

    @property
    def redundant_offset(self) -> int:
        """The log offset below which every record may be dropped; 0 when none may."""
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
