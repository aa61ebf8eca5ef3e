"""Texts of the delivery history: effects of state records, also on a single record of the user topic."""

import pytest

from coordinator.shard.history import (
    HistoryStep,
    describe_event,
    describe_state,
    record_kind,
    record_leader_epoch,
)
from coordinator.shard.state import ShareState
from protocol.messages.share_snapshot import ShareSnapshotValue
from protocol.messages.share_update import ShareUpdateValue
from protocol.state_records import StateRecord, UnreadableValue
from tests.builders import ACKNOWLEDGED, ARCHIVED, AVAILABLE, KEY, BatchTuple, pack_batches

Value = ShareSnapshotValue | ShareUpdateValue | UnreadableValue | None


def make_snapshot(*batches: BatchTuple, leader_epoch: int = 0, written_ms: int = 1) -> ShareSnapshotValue:
    return ShareSnapshotValue(1, 2, leader_epoch, 10, 1, written_ms, pack_batches(*batches))


def make_update(*batches: BatchTuple, leader_epoch: int = 0, start_offset: int = -1) -> ShareUpdateValue:
    return ShareUpdateValue(1, leader_epoch, start_offset, pack_batches(*batches))


def apply_value(before: ShareState | None, value: Value) -> HistoryStep:
    record = StateRecord(KEY, value)
    return HistoryStep.apply(before, record, state_partition=0, log_offset=5, timestamp_ms=1, owner_epoch=-1)


def make_state(*batches: BatchTuple) -> ShareState:
    state = apply_value(None, make_snapshot(*batches)).after
    assert state is not None
    return state


INITIAL = "state epoch 2, leader epoch 0, start offset 10, "
MANY = [(20 + 2 * n, 20 + 2 * n, ACKNOWLEDGED, 1) for n in range(8)]


@pytest.mark.parametrize(
    ("value", "kind", "text"),
    [
        (None, "tombstone", "deleted"),
        (make_snapshot(), "snapshot", f"snapshot 1 initialised: {INITIAL}0 batches"),
        (
            make_snapshot((10, 11, ARCHIVED, 3)),
            "snapshot",
            f"snapshot 1 written: {INITIAL}1 batches: (10-11 ARCHIVED, count 3)",
        ),
        (
            make_snapshot(leader_epoch=4),
            "snapshot",
            "snapshot 1 written: state epoch 2, leader epoch 4, start offset 10, 0 batches",
        ),
        (make_snapshot(written_ms=2), "snapshot", f"snapshot 1 renewed: {INITIAL}0 batches"),
        (make_update(), "update", "nothing new"),
        (make_update(leader_epoch=1), "update", "leader epoch 1"),
        (make_update(start_offset=12), "update", "start offset 12"),
        (
            make_update((20, 20, ACKNOWLEDGED, 1), (22, 23, 9, 2)),
            "update",
            "20 accepted at delivery 1; 22-23 delivery state 9 at delivery 2",
        ),
        (
            make_update(*MANY[:6]),
            "update",
            "; ".join(f"{first} accepted at delivery 1" for first, *_ in MANY[:6]),
        ),
        (
            make_update(*MANY),
            "update",
            "; ".join([*(f"{first} accepted at delivery 1" for first, *_ in MANY[:6]), "and 2 batches more"]),
        ),
        (UnreadableValue(b"", "why"), "unreadable", "a record that cannot be read: why"),
    ],
)
def test_effect_of_each_kind_of_state_record_is_described(value: Value, kind: str, text: str) -> None:
    step = apply_value(make_state(), value)
    event = describe_event(step, None)
    assert event is not None
    assert (record_kind(step), event.what) == (kind, text)
    known = isinstance(value, ShareSnapshotValue | ShareUpdateValue)
    assert record_leader_epoch(step) == (value.leader_epoch if known else None)  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("before", "value", "what", "delivery"),
    [
        (
            make_state(),
            make_update((20, 22, AVAILABLE, 1)),
            "released, to be delivered again (AVAILABLE)",
            ("AVAILABLE", 1),
        ),
        (
            make_state(),
            make_update((21, 21, 3, 5)),
            "given up, on its way to the dead letter queue (ARCHIVING)",
            ("ARCHIVING", 5),
        ),
        (
            make_state(),
            make_update((20, 21, 9, 2)),
            "delivery state 9, which is never stored,",
            ("9", 2),
        ),
        (make_state(), make_update(start_offset=22), "done: the start offset is 22", (None, None)),
        (make_state((21, 21, 0, 1)), None, "there is no state of the share-partition", (None, None)),
        (make_state((21, 21, 0, 1)), make_snapshot(), "nothing is stored of it any more", (None, None)),
    ],
)
def test_effect_of_a_state_record_on_one_user_record_is_described(
    before: ShareState, value: Value, what: str, delivery: tuple[str | None, int | None]
) -> None:
    event = describe_event(apply_value(before, value), 21)
    assert event is not None
    suffix = f" at delivery {delivery[1]}" if delivery[1] else ""
    assert event.what == what + suffix
    assert (event.delivery_state, event.delivery_count) == delivery


@pytest.mark.parametrize(
    "value", [make_update((20, 20, AVAILABLE, 1), (22, 22, AVAILABLE, 1)), make_update(start_offset=21)]
)
def test_state_record_without_effect_on_a_user_record_has_no_event(value: Value) -> None:
    assert describe_event(apply_value(make_state(), value), 21) is None


def test_latest_state_is_described() -> None:
    state = make_state(*MANY)
    shown = " ".join(f"({first}-{first} ACKNOWLEDGED, count 1)" for first, *_ in MANY[:6])
    assert describe_state(state, None) == f"{INITIAL}8 batches: {shown} and 2 more"
    assert describe_state(None, None) == "it has no state any more"
    assert describe_state(state, 22) == "record 22: accepted (ACKNOWLEDGED) at delivery 1"
    assert describe_state(state, 23) == (
        "record 23: nothing is stored of it: not delivered yet, or handed out for the first time"
    )
    assert describe_state(None, 22) == "record 22: there is no state of the share-partition"
