"""A shard compared with a simple model of Kafka's rules, and with a shard replayed from its log.

The model keeps one dictionary for each share-partition, with the greatest (count, state) of each offset; it
has no batches, records or snapshots. After each step, the shard must give the results of the model. A shard
loaded from the log, pruned to any allowed offset, must have equal states.
"""

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from coordinator.shard import SnapshotPolicy
from protocol.errors import ErrorCode
from tests.builders import KEY, DrivenShard, portion, unpack_batches
from tests.builders import make_initialize as initialize_part
from tests.builders import make_read as read_part
from tests.builders import make_write as write_part

KEYS = [KEY, KEY._replace(partition=1), KEY._replace(group_id="other:group")]

keys = st.sampled_from(KEYS)
epochs = st.integers(-1, 4)
start_offsets = st.integers(-1, 20)


@st.composite
def batch_lists(draw: st.DrawFn) -> list[tuple[int, int, int, int]]:
    def draw_batch() -> tuple[int, int, int, int]:
        first = draw(st.integers(0, 20))
        last = first + draw(st.integers(0, 5))
        return (first, last, draw(st.sampled_from([0, 2, 4])), draw(st.integers(1, 3)))

    return [draw_batch() for _ in range(draw(st.integers(0, 4)))]


class SharePartitionModel:
    """A model of one share-partition with the rules of Kafka 4.4."""

    def __init__(self, state_epoch: int, start_offset: int, leader_epoch_max: int) -> None:
        self.state_epoch = state_epoch
        self.start_offset = start_offset
        self.complete_count = -1 if start_offset == -1 else 0
        self.leader_epoch = 0
        self.leader_epoch_max = leader_epoch_max
        self.offsets: dict[int, tuple[int, int]] = {}

    def write(self, batches: list[tuple[int, int, int, int]], start_offset: int, complete_count: int) -> None:
        if start_offset > self.start_offset:
            self.start_offset, self.complete_count = start_offset, complete_count
        elif start_offset == self.start_offset:
            self.complete_count = max(self.complete_count, complete_count)
        for first, last, state, count in batches:
            for offset in range(first, last + 1):
                self.offsets[offset] = max(self.offsets.get(offset, (count, state)), (count, state))
        if self.start_offset != -1:
            self.offsets = {o: claim for o, claim in self.offsets.items() if o >= self.start_offset}


class ShardBesideModel(RuleBasedStateMachine):
    """A state machine that compares the results of random requests with the results of the model."""

    @initialize(updates_max=st.integers(0, 6), update_bytes_min=st.sampled_from([0, 200, 10_000]))
    def begin(self, updates_max: int, update_bytes_min: int) -> None:
        self.driven = DrivenShard(SnapshotPolicy(updates_max, update_bytes_min))
        self.models: dict[Any, SharePartitionModel] = {}
        self.pruned_to = 0

    @rule(key=keys, state_epoch=epochs, start_offset=start_offsets)
    def initialise(self, key: Any, state_epoch: int, start_offset: int) -> None:
        answer = self.driven.initialize(initialize_part(state_epoch, start_offset, key.partition), key=key)
        model = self.models.get(key)
        if state_epoch < 0:
            assert answer.error_code == ErrorCode.INVALID_REQUEST
        elif model is not None and state_epoch < model.state_epoch:
            assert answer.error_code == ErrorCode.FENCED_STATE_EPOCH
        else:
            assert answer.error_code == ErrorCode.NONE
            if model is not None and state_epoch == model.state_epoch and self.repeats(model, start_offset):
                return
            self.models[key] = SharePartitionModel(
                state_epoch, start_offset, model.leader_epoch_max if model else 0
            )

    @staticmethod
    def repeats(model: SharePartitionModel, start_offset: int) -> bool:
        """Return whether an Initialize repeats the current state. Unlike Kafka, the shard then keeps the
        state.
        """
        fresh = SharePartitionModel(model.state_epoch, start_offset, 0)
        return start_offset == -1 or (
            start_offset == model.start_offset
            and not model.offsets
            and model.complete_count == fresh.complete_count
        )

    @rule(key=keys, leader_epoch=epochs)
    def read(self, key: Any, leader_epoch: int) -> None:
        answer = self.driven.read(read_part(leader_epoch, key.partition), key=key)
        model = self.models.get(key)
        if leader_epoch < 0 or model is None:
            assert answer.error_code == ErrorCode.INVALID_REQUEST
        elif leader_epoch < model.leader_epoch_max:
            assert answer.error_code == ErrorCode.FENCED_LEADER_EPOCH
        else:
            assert (answer.error_code, answer.state_epoch, answer.start_offset) == (
                ErrorCode.NONE,
                model.state_epoch,
                model.start_offset,
            )
            got = {
                offset: (count, state)
                for first, last, state, count in unpack_batches(answer.state_batches)
                for offset in range(first, last + 1)
            }
            assert got == model.offsets
            if leader_epoch > model.leader_epoch_max:
                model.leader_epoch = model.leader_epoch_max = leader_epoch

    @rule(
        key=keys,
        state_epoch=epochs,
        leader_epoch=epochs,
        start_offset=start_offsets,
        complete_count=st.integers(-1, 5),
        batches=batch_lists(),
    )
    def write(
        self,
        key: Any,
        state_epoch: int,
        leader_epoch: int,
        start_offset: int,
        complete_count: int,
        batches: list[tuple[int, int, int, int]],
    ) -> None:
        part = write_part(
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

    @rule(key=keys)
    def delete(self, key: Any) -> None:
        assert self.driven.delete(key=key).error_code == ErrorCode.NONE
        self.models.pop(key, None)

    @rule(key=keys)
    def summary(self, key: Any) -> None:
        answer = self.driven.summary(key=key)
        model = self.models.get(key)
        expected = (
            (0, 0, -1, -1)
            if model is None
            else (
                model.state_epoch,
                model.leader_epoch,
                model.start_offset,
                model.complete_count,
            )
        )
        got = (
            answer.state_epoch,
            answer.leader_epoch,
            answer.start_offset,
            answer.delivery_complete_count,
        )
        assert got == expected

    @rule(elapsed_ms=st.integers(0, 700_000))
    def snapshot_cold(self, elapsed_ms: int) -> None:
        self.driven.now_ms += elapsed_ms
        for record in self.driven.shard.snapshot_cold(
            now_ms=self.driven.now_ms, interval_ms=300_000, limits=portion(2)
        ):
            self.driven.append(record)

    @rule()
    def compact(self) -> None:
        driven = self.driven
        for record in driven.shard.snapshot_before(len(driven.log), now_ms=driven.now_ms, limits=portion(2)):
            driven.append(record)

    @rule(part=st.floats(0, 1))
    def prune(self, part: float) -> None:
        redundant = self.driven.shard.redundant_offset
        assert redundant >= self.pruned_to, "the redundant offset decreased"
        self.pruned_to += int(part * (redundant - self.pruned_to))

    @invariant()
    def live_state_is_replayed_state(self) -> None:
        live = dict(self.driven.shard.items())
        replayed = self.driven.reloaded(self.pruned_to)
        assert dict(replayed.shard.items()) == live
        # If the log is pruned to its end, it has no records, so a replay cannot compute the redundant offset.
        redundant = max(replayed.shard.redundant_offset, self.pruned_to)
        assert redundant == self.driven.shard.redundant_offset
        live_bytes = sum(len(key.group_id) + state.snapshot_bytes for key, state in live.items())
        assert self.driven.shard.live_bytes == live_bytes
        assert self.driven.shard.state_batches == sum(state.batch_count for state in live.values())


TestShardBesideModel = ShardBesideModel.TestCase
TestShardBesideModel.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
