"""What the records of a log amount to: the state of every live share-partition.

The fold is the coordinator's own (`coordinator.shard`), so a state here is what a coordinator would answer
from.  A share-partition whose last record is a tombstone has none.
"""

from collections.abc import Mapping
from typing import NamedTuple

from coordinator.migration.errors import MigrationRefused
from coordinator.shard import Shard, ShareState, SnapshotPolicy
from protocol.errors import DecodeError
from protocol.record_batch import LogRecord
from protocol.routing import state_partition as routed_to
from protocol.state_records import SharePartitionKey, decode_record


class ComparableState(NamedTuple):
    """What of a share-partition's state must be the same on both sides.

    Not in it: the snapshot epoch, times, and how often the state was updated since its last snapshot, which
    are the log's own business.  `batches` is None where nobody looked, because the rest is different already.
    """

    state_epoch: int
    leader_epoch: int
    leader_epoch_max: int
    start_offset: int
    delivery_complete_count: int
    batches: bytes | None

    @classmethod
    def from_state(cls, state: ShareState) -> "ComparableState":
        """Return what must be the same; a state that cannot be read is equal to none that can."""
        return cls(
            state.state_epoch,
            state.leader_epoch,
            state.leader_epoch_max,
            state.start_offset,
            state.delivery_complete_count,
            state.batches if state.unreadable is None else None,
        )


class FoldedLog(NamedTuple):
    """A log, folded: states, and where the log of each state partition ended.

    `unknown_records` are of a type that is no share-partition's.  `misplaced` have state in a state partition
    that their hash does not lead to, where no coordinator looks for it; they are not in `states`.  `owners`
    says who holds which state partition: has claimed it last, and did not let go.
    """

    states: Mapping[SharePartitionKey, ShareState]
    ends: tuple[int, ...]
    unknown_records: int = 0
    misplaced: tuple[SharePartitionKey, ...] = ()
    owners: Mapping[int, str] = {}

    @property
    def state_partitions(self) -> int:
        """Into how many state partitions the state is divided."""
        return len(self.ends)

    @property
    def unreadable(self) -> list[SharePartitionKey]:
        """The share-partitions whose last record this release does not understand."""
        return [key for key, state in self.states.items() if state.unreadable is not None]

    def held(self) -> dict[SharePartitionKey, ComparableState]:
        """Return what must be the same elsewhere."""
        return {key: ComparableState.from_state(state) for key, state in self.states.items()}


class Fold:
    """Takes the records of a log that count, those of each state partition in log order."""

    def __init__(self, state_partitions: int) -> None:
        self._shards = [Shard(number, SnapshotPolicy()) for number in range(state_partitions)]
        self._unknown_records = 0

    def take(self, state_partition: int, record: LogRecord) -> None:
        """Take the next record. Raises MigrationRefused if nobody can tell what it belongs to."""
        try:
            decoded = decode_record(record.key, record.value)
        except DecodeError as error:
            raise MigrationRefused(
                f"the record at log offset {record.offset} of state partition {state_partition} "
                f"cannot be understood: {error}"
            ) from error
        if decoded is None:
            self._unknown_records += 1
        else:
            self._shards[state_partition].replay(decoded, record.offset, record.timestamp_ms)

    def folded(self, ends: tuple[int, ...], owners: Mapping[int, str]) -> FoldedLog:
        """Return what all of it amounts to."""
        states: dict[SharePartitionKey, ShareState] = {}
        misplaced: list[SharePartitionKey] = []
        for shard in self._shards:
            for key, state in shard.items():
                if routed_to(key, len(self._shards)) == shard.state_partition:
                    states[key] = state
                else:
                    misplaced.append(key)
        return FoldedLog(states, ends, self._unknown_records, tuple(misplaced), owners)
