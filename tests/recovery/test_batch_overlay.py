"""Compare the columnar merge of state batches with `merge_batches` of the shard core."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator.recovery.batch_overlay import overlay_batches
from coordinator.recovery.decode import StateBatches
from coordinator.shard.batches import NO_START_OFFSET, merge_batches
from protocol.state_batches import StateBatch

Row = tuple[int, StateBatch]

near = st.integers(0, 40)
far = st.sampled_from([-(2**63), -(2**63) + 1, -5, -1, 0, 3, 2**63 - 2, 2**63 - 1])
batches = st.builds(
    StateBatch,
    near | far,
    near | far,
    st.sampled_from([-128, -1, 0, 2, 4, 127]),
    st.integers(-(2**15), 2**15 - 1),
) | st.builds(StateBatch, near, near, st.sampled_from([0, 2]), st.integers(1, 2))
rows = st.lists(st.tuples(st.integers(0, 3), batches), max_size=30)


def make_state_batches(found: list[Row]) -> StateBatches:
    table = np.array([(row, *batch) for row, batch in found], np.int64).reshape(-1, 5)
    return StateBatches(*table.T)


def merge_with_shard_core(found: list[Row]) -> list[tuple[int, ...]]:
    return [
        (row, *batch)
        for row in sorted({row for row, _ in found})
        for batch in merge_batches([batch for each, batch in found if each == row], NO_START_OFFSET)
    ]


@given(rows)
@settings(deadline=None, max_examples=400)
def test_every_offset_keeps_greatest_covering_batch(found: list[Row]) -> None:
    made = overlay_batches(make_state_batches(found))
    assert list(zip(*(column.tolist() for column in made), strict=True)) == merge_with_shard_core(found)
