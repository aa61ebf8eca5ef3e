"""A shard whose responses are compared with the model of Kafka's rules in `tests.simulation.model`.

The model has one entry for each offset of a share-partition; it has no batches, records or snapshots.
"""

from collections.abc import Callable
from typing import Any

from coordinator.shard import SnapshotPolicy
from protocol.state_records import SharePartitionKey
from tests.builders import (
    BatchTuple,
    DrivenShard,
    make_initialize,
    make_limits,
    make_read,
    make_write,
)
from tests.simulation.history import DELETE, INITIALIZE, READ, SUMMARY, WRITE
from tests.simulation.model import State, answer_fields, apply_operation
from tests.simulation.rpc_parts import DeletePart, SummaryPart


class ModelledShard:
    """A shard, and the model that determines its expected responses."""

    def __init__(self, policy: SnapshotPolicy) -> None:
        self.driven = DrivenShard(policy)
        self.states: dict[SharePartitionKey, State | None] = {}
        self.pruned_to = 0

    def _check(self, kind: str, key: SharePartitionKey, part: Any, execute: Callable[[], Any]) -> None:
        """Execute an operation of one share-partition; its response must be that of the model."""
        self.states[key], expected = apply_operation(self.states.get(key), kind, [part])
        assert answer_fields(kind, execute()) == expected

    def initialize(self, key: SharePartitionKey, state_epoch: int, start_offset: int) -> None:
        part = make_initialize(state_epoch, start_offset, key.partition)
        self._check(INITIALIZE, key, part, lambda: self.driven.initialize(part, key=key))

    def read(self, key: SharePartitionKey, leader_epoch: int) -> None:
        part = make_read(leader_epoch, key.partition)
        self._check(READ, key, part, lambda: self.driven.read(part, key=key))

    def write(self, key: SharePartitionKey, batches: list[BatchTuple], **fields: int) -> None:
        part = make_write(*batches, partition=key.partition, **fields)
        self._check(WRITE, key, part, lambda: self.driven.write(part, key=key))

    def delete(self, key: SharePartitionKey) -> None:
        self._check(DELETE, key, DeletePart(key.partition), lambda: self.driven.delete(key=key))

    def summary(self, key: SharePartitionKey) -> None:
        self._check(SUMMARY, key, SummaryPart(key.partition, 0), lambda: self.driven.summary(key=key))

    def snapshot_cold(self, elapsed_ms: int) -> None:
        self.driven.now_ms += elapsed_ms
        for record in self.driven.shard.snapshot_cold(
            now_ms=self.driven.now_ms, interval_ms=300_000, limits=make_limits(2)
        ):
            self.driven.append(record)

    def compact(self) -> None:
        driven = self.driven
        for record in driven.shard.snapshot_before(
            len(driven.log), now_ms=driven.now_ms, limits=make_limits(2)
        ):
            driven.append(record)

    def prune(self, part: float) -> None:
        redundant = self.driven.shard.redundant_offset
        assert redundant >= self.pruned_to, "the redundant offset decreased"
        self.pruned_to += int(part * (redundant - self.pruned_to))

    def check_replay(self) -> None:
        """Check that a shard loaded from the pruned log equals this shard."""
        live = dict(self.driven.shard.items())
        replayed = self.driven.reload(self.pruned_to)
        assert dict(replayed.shard.items()) == live
        # If the log is pruned to its end, it has no records, so a replay cannot compute the redundant offset.
        redundant = max(replayed.shard.redundant_offset, self.pruned_to)
        assert redundant == self.driven.shard.redundant_offset
        live_bytes = sum(len(key.group_id) + state.snapshot_bytes for key, state in live.items())
        assert self.driven.shard.live_bytes == live_bytes
        assert self.driven.shard.state_batches == sum(state.batch_count for state in live.values())
