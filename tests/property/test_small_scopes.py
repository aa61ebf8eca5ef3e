"""Test all merges over a few offsets, and all short sequences of requests for one share-partition.

Random inputs of this size repeat often and omit some cases, so the tests enumerate all of them.
"""

from collections.abc import Callable
from itertools import product

import pytest

from coordinator.fastpath import compiled
from coordinator.shard import SnapshotPolicy, combine
from protocol.state_batches import StateBatch, pack
from tests.builders import KEY
from tests.property.modelled_shard import ModelledShard

# A delivery count and a delivery state. A merge decides by the greater delivery count in the first pair, and
# by the state in the second pair.
Kind = tuple[int, int]
KINDS: list[tuple[Kind, Kind]] = [((1, 4), (2, 2)), ((1, 2), (1, 4))]

MERGES = [combine, *([compiled.merge_batches] if compiled else [])]


def make_batches(offsets: tuple[Kind, ...]) -> bytes:
    """Return batches with these values from offset 0; () means that no batch covers the offset."""
    batches: list[StateBatch] = []
    for offset, kind in enumerate(offsets):
        if kind:
            count, state = kind
            if batches and batches[-1] == StateBatch(batches[-1].first_offset, offset - 1, state, count):
                batches[-1] = batches[-1]._replace(last_offset=offset)
            else:
                batches.append(StateBatch(offset, offset, state, count))
    return pack(batches)


@pytest.mark.parametrize("offsets", [3, pytest.param(4, marks=pytest.mark.slow)])
@pytest.mark.parametrize("kinds", KINDS, ids=["count-decides", "state-decides"])
@pytest.mark.parametrize("merge", MERGES, ids=["python", "compiled"][: len(MERGES)])
def test_all_merges_of_two_written_batches(
    merge: Callable[[bytes, bytes, int], bytes], kinds: tuple[Kind, Kind], offsets: int
) -> None:
    current_values = list(product(((), *kinds), repeat=offsets))
    batches = [
        StateBatch(first, last, state, count)
        for first in range(offsets)
        for last in range(first, offsets)
        for count, state in kinds
    ]
    for written in ([], *([batch] for batch in batches), *map(list, product(batches, repeat=2))):
        written_bytes = pack(written)
        greatest = [
            max(
                (
                    (batch.delivery_count, batch.delivery_state)
                    for batch in written
                    if batch.first_offset <= n <= batch.last_offset
                ),
                default=(),
            )
            for n in range(offsets)
        ]
        for current in current_values:
            merged = tuple(map(max, current, greatest))
            for start_offset in range(-1, offsets + 1):
                expected = tuple(kind if n >= start_offset else () for n, kind in enumerate(merged))
                found = merge(make_batches(current), written_bytes, start_offset)
                assert found == make_batches(expected), (current, written, start_offset)


Step = Callable[[ModelledShard], None]


def make_write_step(first: int, kind: Kind, **epochs_and_offset: int) -> Step:
    count, state = kind
    defaults = {"state_epoch": 1, "leader_epoch": 0, "start_offset": -1, "complete_count": 0}
    return lambda shard: shard.write(
        KEY, [(first, first + 1, state, count)], **{**defaults, **epochs_and_offset}
    )


# Requests before and after a change of the state epoch, the leader epoch and the start offset.
STEPS: dict[str, Step] = {
    "initialize 1": lambda shard: shard.initialize(KEY, 1, 0),
    "initialize 2": lambda shard: shard.initialize(KEY, 2, -1),
    "write": make_write_step(0, (1, 4)),
    "write with leader 1": make_write_step(1, (2, 2), state_epoch=2, leader_epoch=1, start_offset=1),
    "read with leader 1": lambda shard: shard.read(KEY, 1),
    "delete": lambda shard: shard.delete(KEY),
    "compact and prune": lambda shard: (shard.compact(), shard.prune(1.0)),
}


@pytest.mark.parametrize("length", [4, pytest.param(6, marks=pytest.mark.slow)])
def test_all_short_request_sequences_of_one_share_partition(length: int) -> None:
    """Compare each response with the model, and the shard at the end with one loaded from its log."""
    for names in product(STEPS, repeat=length):
        shard = ModelledShard(SnapshotPolicy(1, 0))
        try:
            for name in names:
                STEPS[name](shard)
            shard.summary(KEY)
            shard.check_replay()
        except AssertionError as error:
            error.add_note(" > ".join(names))
            raise
