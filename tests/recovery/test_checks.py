"""Test that the division of a log into ranges, and their order, do not change the findings of checks."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator.recovery.checks.catalogue import CATALOGUE
from coordinator.recovery.checks.findings import (
    FINDINGS_OUTPUT,
    finding_from_row,
    findings_table,
    merge_findings,
)
from coordinator.recovery.checks.limits import Limits
from coordinator.recovery.checks.range_audit import audit_range, join_audit
from coordinator.recovery.checks.writer_sequence import WRITERS_OUTPUT, check_writer_sequence
from coordinator.recovery.engines.base import group_by_partition
from coordinator.recovery.final_states import owner_epochs
from coordinator.recovery.ranges import RANGES_OUTPUT
from coordinator.recovery.tasks import NamedOutput
from protocol.messages.share_update import ShareUpdateValue
from protocol.state_records import StateRecord, encode_record
from tests.recovery.log_strategies import (
    KEYS,
    STATE_PARTITION,
    LogEntry,
    encode_log,
    kafkas_logs,
    our_logs,
    parse_batches,
)

LIMITS = Limits(updates_max=3, delivery_count_max=2, clock_ms_max=3, record_bytes_max=120, in_flight_max=20)
any_logs = kafkas_logs | our_logs


def join_range_findings(outputs: Sequence[NamedOutput]) -> list[dict[str, Any]]:
    """Join the outputs of ranges like an audit."""
    ranges = [row for each in outputs if each.name == RANGES_OUTPUT for row in each.rows.to_pylist()]
    writers = [row for each in outputs if each.name == WRITERS_OUTPUT for row in each.rows.to_pylist()]
    found = check_writer_sequence(writers, {STATE_PARTITION: 0}, LIMITS)
    known = owner_epochs(ranges)
    for state_partition, tables in group_by_partition(outputs):
        joined = join_audit(known, LIMITS, 4, {STATE_PARTITION: 0}, state_partition, tables)
        found += [
            finding_from_row(row)
            for each in joined
            if each.name == FINDINGS_OUTPUT
            for row in each.rows.to_pylist()
        ]
    rows: list[dict[str, Any]] = findings_table(merge_findings(found)).to_pylist()
    return rows


def divide_into_ranges(data: st.DataObject, batches: list[bytes]) -> list[list[bytes]]:
    """Divide a log into ranges. Some are empty, like a file that contains only an incomplete write."""
    places = data.draw(st.lists(st.integers(0, len(batches)), max_size=4).map(sorted))
    return [batches[begin:end] for begin, end in pairwise([0, *places, len(batches)])]


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
def test_cut_does_not_hide_value_of_earlier_record(check: str, log: list[LogEntry]) -> None:
    batches = encode_log(log)
    whole = join_range_findings(list(audit_range(LIMITS, [parse_batches(batches)])))
    (found,) = (row for row in whole if row["check"] == check)
    assert (found["log_offset"], found["timestamp_ms"]) == (2, 3)
    for places in ([1], [2], [1, 2]):
        stretches = [batches[begin:end] for begin, end in pairwise([0, *places, 3])]
        outputs = [output for each in stretches for output in audit_range(LIMITS, [parse_batches(each)])]
        assert join_range_findings(outputs) == whole
        assert join_range_findings(list(audit_range(LIMITS, map(parse_batches, stretches)))) == whole


@given(any_logs, st.data())
@settings(max_examples=80, deadline=None)
def test_cut_and_order_of_ranges_do_not_change_findings(log: list[LogEntry], data: st.DataObject) -> None:
    batches = encode_log(log)
    whole = join_range_findings(list(audit_range(LIMITS, [parse_batches(batches)] if batches else [])))
    outputs = [
        output
        for stretch in divide_into_ranges(data, batches)
        for output in audit_range(
            LIMITS, [parse_batches(chunk) for chunk in divide_into_ranges(data, stretch)]
        )
    ]
    data.draw(st.randoms(use_true_random=False)).shuffle(outputs)
    assert join_range_findings(outputs) == whole
    assert {row["check"] for row in whole} <= set(CATALOGUE)
