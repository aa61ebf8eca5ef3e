"""Test the packed states of a shard: packing is lossless, and states are ordered by first needed offset."""

from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator.shard import Shard, ShareState, SnapshotPolicy
from coordinator.shard.packed_state import (
    first_needed_offset,
    pack,
    snapshot_bytes,
    unpack,
    with_first_needed_offset,
)
from protocol.messages.share_snapshot import ShareSnapshotValue
from protocol.messages.share_update import ShareUpdateValue
from protocol.state_batches import pack as pack_batches
from protocol.state_records import SharePartitionKey, StateRecord, UnreadableValue
from tests.builders import KEY
from tests.property.test_batches import ascending

int32 = st.integers(-(2**31), 2**31 - 1)
int64 = st.integers(-(2**63), 2**63 - 1)
states = st.builds(
    ShareState,
    snapshot_epoch=int32,
    state_epoch=int32,
    leader_epoch=int32,
    leader_epoch_max=int32,
    start_offset=int64,
    delivery_complete_count=int32,
    create_timestamp=int64,
    write_timestamp=int64,
    batches=ascending.map(pack_batches),
    updates=int64,
    update_bytes=int64,
    last_write_ms=int64,
    unreadable=st.none() | st.sampled_from(["", "value version 7", "für später"]),
)


@settings(deadline=None)
@given(states, int64, int64)
def test_packed_state_is_unpacked_unchanged(state: ShareState, log_offset: int, later: int) -> None:
    packed = pack(state, log_offset)
    assert unpack(packed) == state
    assert first_needed_offset(packed) == log_offset
    assert with_first_needed_offset(packed, later) == pack(state, later)
    assert snapshot_bytes(packed) == state.snapshot_bytes


class RedundantOffsetModel:
    """A model of the redundant offset: the least log offset that any share-partition needs."""

    def __init__(self) -> None:
        self.needed: dict[SharePartitionKey, int] = {}
        self.end = 0

    def mark_durable(self, record: StateRecord, log_offset: int) -> None:
        self.end = log_offset + 1
        if record.value is None:
            self.needed.pop(record.key, None)
        elif isinstance(record.value, ShareSnapshotValue) or record.key not in self.needed:
            self.needed[record.key] = log_offset

    @property
    def redundant_offset(self) -> int:
        return min(self.needed.values(), default=self.end)


def draw_record(random: Random, shard: Shard, pending: bool) -> StateRecord:
    """Return a record that the shard may apply next; no update creates a state while records are pending."""
    key = KEY._replace(partition=random.randrange(4))
    snapshot = ShareSnapshotValue(0, 0, 0, 0, 0, 0, b"")
    if shard.state(key) is None:
        begins = not pending and random.randrange(4) == 0
        return StateRecord(key, ShareUpdateValue(0, 0, 0, b"") if begins else snapshot)
    others = (ShareUpdateValue(0, 0, 0, b""), UnreadableValue(b"", "value version 7"))
    return StateRecord(key, random.choice((None, snapshot, *others)))


@settings(deadline=None)
@given(st.integers(0, 2**32))
def test_nothing_is_pruned_before_its_replacement_is_durable(seed: int) -> None:
    random = Random(seed)
    shard, model = Shard(0, SnapshotPolicy()), RedundantOffsetModel()
    log_offset = 0
    for _ in range(8):
        together: list[StateRecord] = []
        for _ in range(random.randrange(1, 6)):
            together.append(draw_record(random, shard, bool(together)))
            shard.apply(together[-1], 0)
            assert shard.redundant_offset <= model.redundant_offset
        if all(record.value is not None for record in together):
            assert shard.redundant_offset == model.redundant_offset
        for record in together:
            shard.mark_durable(record, log_offset)
            model.mark_durable(record, log_offset)
            log_offset += 1
            assert shard.redundant_offset <= model.redundant_offset
        # All applied records are durable now.
        assert shard.redundant_offset == model.redundant_offset
        oldest_first = sorted(model.needed, key=lambda key: model.needed[key])
        assert shard.share_partitions() == oldest_first
        assert {key: first_needed_offset(packed) for key, packed in shard._states.items()} == model.needed
        below = random.randrange(log_offset + 1)
        assert list(shard._pruning_offsets.keys_needed_below(below)) == [
            key for key in oldest_first if model.needed[key] < below
        ]
