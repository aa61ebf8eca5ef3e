"""Compare a shard after random requests with its model, and with a shard loaded from its pruned log."""

from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from coordinator.shard import SnapshotPolicy
from tests.builders import KEY
from tests.property.example_settings import example_settings
from tests.property.modelled_shard import ModelledShard

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


class ShardModelComparison(RuleBasedStateMachine):
    """Random requests for three share-partitions."""

    @initialize(updates_max=st.integers(0, 6), update_bytes_min=st.sampled_from([0, 200, 10_000]))
    def create_shard(self, updates_max: int, update_bytes_min: int) -> None:
        self.shard = ModelledShard(SnapshotPolicy(updates_max, update_bytes_min))

    @rule(key=keys, state_epoch=epochs, start_offset=start_offsets)
    def initialise(self, key: Any, state_epoch: int, start_offset: int) -> None:
        self.shard.initialize(key, state_epoch, start_offset)

    @rule(key=keys, leader_epoch=epochs)
    def read(self, key: Any, leader_epoch: int) -> None:
        self.shard.read(key, leader_epoch)

    @rule(
        key=keys,
        batches=batch_lists(),
        epochs_and_offsets=st.fixed_dictionaries(
            {
                "state_epoch": epochs,
                "leader_epoch": epochs,
                "start_offset": start_offsets,
                "complete_count": st.integers(-1, 5),
            }
        ),
    )
    def write(self, key: Any, batches: list[tuple[int, int, int, int]], epochs_and_offsets: Any) -> None:
        self.shard.write(key, batches, **epochs_and_offsets)

    @rule(key=keys)
    def delete(self, key: Any) -> None:
        self.shard.delete(key)

    @rule(key=keys)
    def summary(self, key: Any) -> None:
        self.shard.summary(key)

    @rule(elapsed_ms=st.integers(0, 700_000))
    def snapshot_cold(self, elapsed_ms: int) -> None:
        self.shard.snapshot_cold(elapsed_ms)

    @rule()
    def compact(self) -> None:
        self.shard.compact()

    @rule(part=st.floats(0, 1))
    def prune(self, part: float) -> None:
        self.shard.prune(part)

    @invariant()
    def replayed_state_equals_live_state(self) -> None:
        self.shard.check_replay()


TestShardEqualsModel = ShardModelComparison.TestCase
TestShardEqualsModel.settings = example_settings(150, stateful_step_count=40)
