"""Compare the vectorized fold with the shard core, for any log and any division into ranges and chunks."""

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator.recovery.claim_filter import RangeOwners, owner_epochs_at_starts
from coordinator.recovery.parse import parse
from coordinator.recovery.ranges import RangeFold, RangeScan
from protocol.messages.share_update import ShareUpdateValue
from protocol.record_batch import encode_batch
from protocol.state_batches import StateBatch, pack
from protocol.state_records import StateRecord, encode_record
from tests.recovery.log_strategies import (
    KEYS,
    STATE_PARTITION,
    LogEntry,
    comparable_rows,
    encode_log,
    fold_ranges,
    fold_to_state_rows,
    fold_with_shard_core,
    join_to_state_rows,
    kafkas_logs,
    our_logs,
    shard_core_rows,
)

any_logs = kafkas_logs | our_logs


def divide_into_ranges(data: st.DataObject, batches: list[bytes]) -> list[list[bytes]]:
    """Divide a log into ranges, some of them empty."""
    places = data.draw(st.lists(st.integers(0, len(batches)), max_size=4).map(sorted))
    return [batches[begin:end] for begin, end in pairwise([0, *places, len(batches)])]


@given(any_logs)
@settings(deadline=None)
def test_fold_equals_shard_core(log: list[LogEntry]) -> None:
    batches = encode_log(log)
    assert comparable_rows(fold_to_state_rows([[batches]])) == shard_core_rows(fold_with_shard_core(batches))


@given(any_logs, st.data())
@settings(max_examples=300, deadline=None)
def test_ranges_and_chunks_do_not_change_result(log: list[LogEntry], data: st.DataObject) -> None:
    batches = encode_log(log, base_offset=data.draw(st.sampled_from([0, 5])))
    ranges = [divide_into_ranges(data, stretch) for stretch in divide_into_ranges(data, batches)]
    found = fold_ranges(ranges)
    data.draw(st.randoms(use_true_random=False)).shuffle(found)
    assert comparable_rows(join_to_state_rows(found)) == shard_core_rows(fold_with_shard_core(batches))


def test_fold_memory_depends_on_share_partitions_not_records() -> None:
    """The fold of a range with one hot share-partition buffers a bounded number of records."""
    key = KEYS[0]
    scan, folding = RangeScan(STATE_PARTITION), RangeFold(STATE_PARTITION)
    most = 0
    for first in range(0, 500_000, 50_000):
        value = ShareUpdateValue(0, 1, first, pack([StateBatch(first, first + 5, 2, 1)]))
        batch = encode_batch(first, 1, [encode_record(StateRecord(key, value))] * 50_000)
        records = parse(STATE_PARTITION, batch).records
        folding.fold_records(scan, scan.process_records(records))
        most = max(most, sum(map(len, folding._waiting)))
    assert most < 300_000
    folded_range = folding.result()
    assert folded_range is not None
    assert len(folded_range) == 1
    assert folded_range["records"].tolist() == [500_000]
    assert folded_range["start_offset"].tolist() == [450_000]


def test_claims_never_lower_the_owner_epoch_at_the_start_of_a_range() -> None:
    # An empty range, then ranges whose greatest claims are 5, none, and 3.
    ranges = [RangeOwners(0, -1, False, -1), RangeOwners(9, 4, False, 5), RangeOwners(9, 5, False, -1)]
    assert owner_epochs_at_starts([*ranges, RangeOwners(9, 3, True, 3), RangeOwners(9, 5, False, -1)]) == [
        *(-1, 4, 5, 5, 5)
    ]
