"""A shard next to a simple model of Kafka's rules: each request is checked against the model.

The model keeps one dictionary for each share-partition, with the greatest (count, state) of each offset; it
has no batches, records or snapshots.
"""

from coordinator.shard import SnapshotPolicy
from protocol.errors import ErrorCode
from protocol.state_records import SharePartitionKey
from tests.builders import (
    BatchTuple,
    DrivenShard,
    make_initialize,
    make_limits,
    make_read,
    make_write,
    unpack_batches,
)


class SharePartitionModel:
    """A model of one share-partition with the rules of Kafka 4.4."""

    def __init__(self, state_epoch: int, start_offset: int, leader_epoch_max: int) -> None:
        self.state_epoch = state_epoch
        self.start_offset = start_offset
        self.complete_count = -1 if start_offset == -1 else 0
        self.leader_epoch = 0
        self.leader_epoch_max = leader_epoch_max
        self.offsets: dict[int, tuple[int, int]] = {}

    def is_repeated_by(self, start_offset: int) -> bool:
        """Return whether an Initialize repeats the current state. Unlike Kafka, the shard then keeps the
        state.
        """
        return start_offset == -1 or (
            start_offset == self.start_offset and not self.offsets and self.complete_count == 0
        )

    def write(self, batches: list[BatchTuple], start_offset: int, complete_count: int) -> None:
        if start_offset > self.start_offset:
            self.start_offset, self.complete_count = start_offset, complete_count
        elif start_offset == self.start_offset:
            self.complete_count = max(self.complete_count, complete_count)
        for first, last, state, count in batches:
            for offset in range(first, last + 1):
                self.offsets[offset] = max(self.offsets.get(offset, (count, state)), (count, state))
        if self.start_offset != -1:
            self.offsets = {o: claim for o, claim in self.offsets.items() if o >= self.start_offset}


class ModelledShard:
    """A shard whose responses must be those of the model."""

    def __init__(self, policy: SnapshotPolicy) -> None:
        self.driven = DrivenShard(policy)
        self.models: dict[SharePartitionKey, SharePartitionModel] = {}
        self.pruned_to = 0

    def initialize(self, key: SharePartitionKey, state_epoch: int, start_offset: int) -> None:
        answer = self.driven.initialize(make_initialize(state_epoch, start_offset, key.partition), key=key)
        model = self.models.get(key)
        if state_epoch < 0:
            assert answer.error_code == ErrorCode.INVALID_REQUEST
        elif model is not None and state_epoch < model.state_epoch:
            assert answer.error_code == ErrorCode.FENCED_STATE_EPOCH
        else:
            assert answer.error_code == ErrorCode.NONE
            if model is None or state_epoch != model.state_epoch or not model.is_repeated_by(start_offset):
                leader_epoch_max = model.leader_epoch_max if model else 0
                self.models[key] = SharePartitionModel(state_epoch, start_offset, leader_epoch_max)

    def read(self, key: SharePartitionKey, leader_epoch: int) -> None:
        answer = self.driven.read(make_read(leader_epoch, key.partition), key=key)
        model = self.models.get(key)
        if leader_epoch < 0 or model is None:
            assert answer.error_code == ErrorCode.INVALID_REQUEST
        elif leader_epoch < model.leader_epoch_max:
            assert answer.error_code == ErrorCode.FENCED_LEADER_EPOCH
        else:
            got = (answer.error_code, answer.state_epoch, answer.start_offset)
            assert got == (ErrorCode.NONE, model.state_epoch, model.start_offset)
            assert model.offsets == {
                offset: (count, state)
                for first, last, state, count in unpack_batches(answer.state_batches)
                for offset in range(first, last + 1)
            }
            if leader_epoch > model.leader_epoch_max:
                model.leader_epoch = model.leader_epoch_max = leader_epoch

    def write(
        self,
        key: SharePartitionKey,
        batches: list[BatchTuple],
        *,
        state_epoch: int,
        leader_epoch: int,
        start_offset: int,
        complete_count: int,
    ) -> None:
        part = make_write(
            *batches,
            start_offset=start_offset,
            state_epoch=state_epoch,
            leader_epoch=leader_epoch,
            complete_count=complete_count,
            partition=key.partition,
        )
        answer = self.driven.write(part, key=key)
        model = self.models.get(key)
        if leader_epoch < 0 or state_epoch < 0 or model is None:
            assert answer.error_code == ErrorCode.INVALID_REQUEST
        elif leader_epoch < model.leader_epoch_max:
            assert answer.error_code == ErrorCode.FENCED_LEADER_EPOCH
        elif state_epoch < model.state_epoch:
            assert answer.error_code == ErrorCode.FENCED_STATE_EPOCH
        else:
            assert answer.error_code == ErrorCode.NONE
            model.write(batches, start_offset, complete_count)

    def delete(self, key: SharePartitionKey) -> None:
        assert self.driven.delete(key=key).error_code == ErrorCode.NONE
        self.models.pop(key, None)

    def summary(self, key: SharePartitionKey) -> None:
        answer = self.driven.summary(key=key)
        model = self.models.get(key)
        expected = (0, 0, -1, -1)
        if model is not None:
            expected = (model.state_epoch, model.leader_epoch, model.start_offset, model.complete_count)
        assert expected == (
            answer.state_epoch,
            answer.leader_epoch,
            answer.start_offset,
            answer.delivery_complete_count,
        )

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
