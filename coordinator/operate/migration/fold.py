"""Fold the records of a log to the state of every live share-partition.

The fold uses the coordinator's own code (`coordinator.shard`), so the states equal those of a coordinator. A
share-partition whose last record is a tombstone has no state.
"""

from collections.abc import Mapping
from typing import NamedTuple

from coordinator.errors import CoordinatorError
from coordinator.shard import Shard, ShareState, SnapshotPolicy
from protocol.errors import DecodeError
from protocol.record_batch import LogRecord
from protocol.routing import state_partition as routed_to
from protocol.state_records import SharePartitionKey, decode_record


class MigrationRefused(CoordinatorError):
    """The migration is refused: it could lose state. The message is one line with the remedy."""


class ComparableState(NamedTuple):
    """The part of a share-partition's state that must be equal in source and target.

    The snapshot epoch, timestamps and the number of updates since the last snapshot are not compared.
    `batches` is None if they were not read because another field differs.
    """

    state_epoch: int
    leader_epoch: int
    leader_epoch_max: int
    start_offset: int
    delivery_complete_count: int
    batches: bytes | None

    @classmethod
    def from_state(cls, state: ShareState) -> "ComparableState":
        """Return the comparable part; an unreadable state differs from every readable one."""
        return cls(
            state.state_epoch,
            state.leader_epoch,
            state.leader_epoch_max,
            state.start_offset,
            state.delivery_complete_count,
            state.batches if state.unreadable is None else None,
        )


class FoldedLog(NamedTuple):
    """The folded states of a log, and the end offset of each state partition.

    `unknown_records` counts records of unknown types. `misplaced` share-partitions have state in a state
    partition that does not match their hash, so no coordinator reads it; they are not in `states`. `owners`
    maps each state partition with an unreleased claim to the claim's owner.
    """

    states: Mapping[SharePartitionKey, ShareState]
    ends: tuple[int, ...]
    unknown_records: int = 0
    misplaced: tuple[SharePartitionKey, ...] = ()
    owners: Mapping[int, str] = {}

    @property
    def state_partitions(self) -> int:
        return len(self.ends)

    @property
    def unreadable_keys(self) -> list[SharePartitionKey]:
        """The share-partitions whose last record has a version that this release does not support."""
        return [key for key, state in self.states.items() if state.unreadable is not None]

    def comparable_states(self) -> dict[SharePartitionKey, ComparableState]:
        return {key: ComparableState.from_state(state) for key, state in self.states.items()}


class LogFold:
    """Folds the valid records of a log, given in log order for each state partition."""

    def __init__(self, state_partitions: int) -> None:
        self._shards = [Shard(number, SnapshotPolicy()) for number in range(state_partitions)]
        self._unknown_records = 0

    def add_record(self, state_partition: int, record: LogRecord) -> None:
        """Apply the next record. Raises MigrationRefused if the key of the record cannot be decoded."""
        try:
            decoded = decode_record(record.key, record.value)
        except DecodeError as error:
            raise MigrationRefused(
                f"the record at log offset {record.offset} of state partition {state_partition} "
                f"cannot be decoded: {error}"
            ) from error
        if decoded is None:
            self._unknown_records += 1
        else:
            self._shards[state_partition].replay(decoded, record.offset, record.timestamp_ms)

    def make_folded_log(self, ends: tuple[int, ...], owners: Mapping[int, str]) -> FoldedLog:
        states: dict[SharePartitionKey, ShareState] = {}
        misplaced: list[SharePartitionKey] = []
        for shard in self._shards:
            for key, state in shard.items():
                if routed_to(key, len(self._shards)) == shard.state_partition:
                    states[key] = state
                else:
                    misplaced.append(key)
        return FoldedLog(states, ends, self._unknown_records, tuple(misplaced), owners)
