"""Compare the vectorized fold with the shard core, for any log and any division into chunks."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator.recovery import scan
from coordinator.recovery.batch_overlay import NO_BATCHES
from coordinator.recovery.parse import parse
from coordinator.recovery.records import Damage
from coordinator.recovery.scan import PartitionScan, StateFold
from coordinator.recovery.schema import CHECKPOINTED_STATES
from coordinator.recovery.states import StateRows, StoredStates, concatenate_rows
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
    fold_to_state_rows,
    fold_with_shard_core,
    kafkas_logs,
    our_logs,
    parse_batches,
    shard_core_rows,
)

any_logs = kafkas_logs | our_logs


def divide_into_chunks(data: st.DataObject, batches: list[bytes]) -> list[list[bytes]]:
    """Draw a division of a log into chunks, some of which are empty."""
    places = data.draw(st.lists(st.integers(0, len(batches)), max_size=6).map(sorted))
    return [batches[begin:end] for begin, end in pairwise([0, *places, len(batches)])]


@given(any_logs, st.data())
@settings(max_examples=200, deadline=None)
def test_fold_of_any_chunks_equals_shard_core(log: list[LogEntry], data: st.DataObject) -> None:
    batches = encode_log(log, base_offset=data.draw(st.sampled_from([0, 5])))
    # Because of the small limit, every chunk is folded into the states after the previous chunk.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scan, "_WAITING_MAX", data.draw(st.sampled_from([-100, 3, 200_000])))
        found = comparable_rows(fold_to_state_rows(divide_into_chunks(data, batches)))
    assert found == shard_core_rows(fold_with_shard_core(batches))


def test_concatenated_rows_keep_reasons_of_unreadable_records() -> None:
    part = StateRows(np.arange(2), {}, NO_BATCHES, {1: "another version"})
    joined = concatenate_rows([part, part, part])
    assert joined.unreadable == dict.fromkeys((1, 3, 5), "another version")
    assert joined.key.tolist() == [0, 1] * 3


def test_fold_memory_depends_on_share_partitions_not_records() -> None:
    """A share-partition has many updates, but the number of buffered records has a limit."""
    key = KEYS[0]
    scanned = PartitionScan(STATE_PARTITION)
    folding = StateFold(scanned)
    most = 0
    for first in range(0, 500_000, 50_000):
        value = ShareUpdateValue(0, 1, first, pack([StateBatch(first, first + 5, 2, 1)]))
        batch = encode_batch(first, 1, [encode_record(StateRecord(key, value))] * 50_000)
        records = parse(STATE_PARTITION, batch).records
        folding.add(scanned.process_records(records).decoded)
        most = max(most, sum(map(len, folding._waiting)))
    assert most < 300_000
    folded = folding.result()
    assert folded["records"].tolist() == [500_000]
    assert folded["start_offset"].tolist() == [450_000]


def test_number_of_gaps_and_age_of_stored_damage_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scan, "_GAPS_MAX", 3)
    record = encode_record(StateRecord(KEYS[0], ShareUpdateValue(0, 1, 7, b"")))
    records = parse_batches([encode_batch(offset, 0, [record]) for offset in range(100, 120, 2)])
    summary = PartitionScan(STATE_PARTITION).summary() | {"range_end": 100}
    damages = [Damage(STATE_PARTITION, last - 1, last, "damaged") for last in (9, 10)]
    scanned = PartitionScan(
        STATE_PARTITION,
        {STATE_PARTITION: 10},
        StoredStates(CHECKPOINTED_STATES.empty_table(), -1, summary, damages),
    )
    scanned.process_records(records)
    scanned.process_end(125)
    first, *gaps = [(each.first, each.last, each.check) for each in scanned.damages]
    assert first == (9, 10, "P4")
    assert gaps == [(101, 101, "P2"), (103, 103, "P2"), (105, 124, "P2")]
