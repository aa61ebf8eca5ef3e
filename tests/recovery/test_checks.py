"""Test that chunks of a log do not change the findings of checks, and columns of share-partitions."""

from collections.abc import Iterable
from functools import partial
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator.recovery import scan
from coordinator.recovery.checks.catalogue import CATALOGUE
from coordinator.recovery.checks.findings import FINDINGS_OUTPUT, finding_from_row, findings_table
from coordinator.recovery.checks.limits import Limits
from coordinator.recovery.checks.partition_audit import AuditSettings, PartitionAudit
from coordinator.recovery.scan import scan_range
from coordinator.recovery.share_partitions import hash_partitions, record_key_identity, split_identities
from protocol.messages.share_update import ShareUpdateValue
from protocol.routing import state_partition
from protocol.state_records import SharePartitionKey, StateRecord, encode_record, topic_id_text
from tests.recovery.log_strategies import (
    KEYS,
    STATE_PARTITION,
    LogEntry,
    encode_log,
    kafkas_logs,
    our_logs,
    parse_batches,
)
from tests.recovery.test_fold import divide_into_chunks

LIMITS = Limits(updates_max=3, delivery_count_max=2, clock_ms_max=3, record_bytes_max=120, in_flight_max=20)
any_logs = kafkas_logs | our_logs


SETTINGS = AuditSettings(LIMITS, state_partitions=4)


def find_in_chunks(chunks: Iterable[list[bytes]], waiting_max: int = 200_000) -> list[dict[str, Any]]:
    """Audit a log in chunks; histories are checked when more than `waiting_max` records are collected."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scan, "_WAITING_MAX", waiting_max)
        outputs = list(
            scan_range(partial(PartitionAudit, SETTINGS), map(parse_batches, chunks), {STATE_PARTITION: 0})
        )
    found = [row for each in outputs if each.name == FINDINGS_OUTPUT for row in each.rows.to_pylist()]
    rows: list[dict[str, Any]] = findings_table(map(finding_from_row, found)).to_pylist()
    return rows


def make_update(timestamp_ms: int, **fields: Any) -> LogEntry:
    given = {"snapshot_epoch": 0, "leader_epoch": -1, "start_offset": -1, "state_batches": b""} | fields
    return LogEntry(*encode_record(StateRecord(KEYS[0], ShareUpdateValue(**given))), None, timestamp_ms)


@pytest.mark.parametrize(
    ("check", "log"),
    [
        (
            "K13",
            [
                make_update(1, start_offset=4),
                make_update(2, delivery_complete_count=5),
                make_update(3, start_offset=4, delivery_complete_count=2),
            ],
        ),
        ("K6", [make_update(1, leader_epoch=3), make_update(2), make_update(3, leader_epoch=2)]),
        ("K7", [make_update(1, start_offset=9), make_update(2), make_update(3, start_offset=8)]),
    ],
)
def test_finding_that_needs_earlier_record_does_not_depend_on_chunks(check: str, log: list[LogEntry]) -> None:
    batches = encode_log(log)
    whole = find_in_chunks([batches])
    (found,) = (row for row in whole if row["check"] == check)
    assert (found["log_offset"], found["timestamp_ms"]) == (2, 3)
    for places in ([1], [2], [1, 2]):
        chunks = [batches[begin:end] for begin, end in pairwise([0, *places, 3])]
        assert find_in_chunks(chunks, waiting_max=-100) == whole


@given(
    st.lists(st.tuples(st.text(max_size=40), st.binary(min_size=16, max_size=16), st.integers(0, 2**31 - 1)))
)
@settings(deadline=None)
def test_columns_of_share_partitions_equal_those_of_protocol(keys: list[tuple[str, bytes, int]]) -> None:
    keys = [SharePartitionKey(*key) for key in (*keys, *KEYS)]
    identities = [record_key_identity(key) for key in keys]
    for count in (1, 50, 1_000_003):
        assert hash_partitions(identities, count).tolist() == [state_partition(key, count) for key in keys]
    groups, topics, partitions = split_identities(identities)
    columns = zip(groups, (bytes(each).decode() for each in topics), partitions.tolist(), strict=True)
    assert list(columns) == [(key.group_id, topic_id_text(key.topic_id), key.partition) for key in keys]


@given(any_logs, st.data())
@settings(max_examples=80, deadline=None)
def test_chunks_do_not_change_findings(log: list[LogEntry], data: st.DataObject) -> None:
    batches = encode_log(log)
    whole = find_in_chunks([batches] if batches else [])
    waiting_max = data.draw(st.sampled_from([-100, 3]))
    assert find_in_chunks(divide_into_chunks(data, batches), waiting_max) == whole
    assert {row["check"] for row in whole} <= set(CATALOGUE)
