"""Inject faults into a share-partition's history; `injected_faults` has faults of records and logs."""

from dataclasses import replace
from typing import Any

from protocol.messages.share_snapshot import ShareSnapshotValue as Snapshot
from protocol.messages.share_update import ShareUpdateValue as Update
from protocol.state_records import StateRecord
from tests.recovery.injected_faults import (
    FAULTS,
    batches_of,
    change_value,
    changed_value_fault,
    drop_records,
    edit_batches,
    first_position,
    indexes_of_key,
    insert_record,
    inserted_copy_fault,
    lowered_limit_fault,
    previous_record,
    record_positions,
)
from tests.recovery.share_groups import UPDATES_MAX, Log, make_batch

__all__ = ["FAULTS"]


def _prune_snapshots_before_updates(log: Log) -> None:
    place = first_position(log, Update)
    mine = indexes_of_key(log, place)
    drop_records(log, place[0], lambda at, each: at in mine and not isinstance(each.record.value, Update))


def _prune_first_half(log: Log) -> None:
    number = next(iter(log))
    drop_records(log, number, lambda at, each: at < len(log[number]) // 2)


def _remove_snapshot(log: Log) -> None:
    place = first_position(log, Snapshot, lambda value: value.snapshot_epoch > 1)
    drop_records(log, place[0], lambda at, each: at == place[1])


def _remove_batch_from_snapshot(log: Log) -> None:
    def continues_state(number: int, at: int) -> bool:
        """Return whether a snapshot has the state epoch of the snapshot before it."""
        values: list[Any] = [
            log[number][n].record.value for n in indexes_of_key(log, (number, at)) if n <= at
        ]
        *_, before, last = (value.state_epoch for value in values if isinstance(value, Snapshot))
        return bool(before == last)

    places = record_positions(log, Snapshot, lambda value: len(batches_of(value)) > 1, after=Update)
    place = next(place for place in places if continues_state(*place))
    change_value(log, place, state_batches=edit_batches(lambda found: found[1:]))


def _insert_update_after_tombstone(log: Log) -> None:
    number, at = first_position(log, None)
    record = StateRecord(log[number][at].record.key, Update(0, 1, 9, b"", 0))
    insert_record(log, (number, at), replace(log[number][at], record=record))


def _change_last_complete_count(log: Log) -> None:
    last = {each.record.key: (number, at) for number, log_ in log.items() for at, each in enumerate(log_)}
    place = next(place for place in last.values() if isinstance(log[place[0]][place[1]].record.value, Update))
    change_value(log, place, delivery_complete_count=99)


def _decrease_complete_count(log: Log) -> None:
    def keeps_start_offset(place: tuple[int, int]) -> bool:
        value: Any = log[place[0]][place[1]].record.value
        before: Any = previous_record(log, place).record.value
        return bool(value.start_offset == before.start_offset and before.delivery_complete_count > 0)

    place = next(place for place in record_positions(log, Update, after=Update) if keeps_start_offset(place))
    change_value(log, place, delivery_complete_count=0)


FAULTS |= {
    "K1": _prune_snapshots_before_updates,
    "K1b": _prune_first_half,
    "K2": changed_value_fault(Update, snapshot_epoch=lambda value: value.snapshot_epoch + 1),
    "K2:late": changed_value_fault(Update, lambda value: value.snapshot_epoch > 1, snapshot_epoch=0),
    "K3": _remove_snapshot,
    "K4": changed_value_fault(Snapshot, lambda value: value.snapshot_epoch == 0, snapshot_epoch=4),
    "K5": changed_value_fault(
        Snapshot, lambda value: value.snapshot_epoch > 0, state_epoch=0, leader_epoch=9
    ),
    "K6": changed_value_fault(Update, lambda value: value.leader_epoch > 0, leader_epoch=0),
    "K7": changed_value_fault(Update, lambda value: value.start_offset > 9, after=Update, start_offset=3),
    "K7:snapshot": changed_value_fault(
        *(Snapshot, lambda value: value.start_offset > 9 and batches_of(value)), after=Update, start_offset=3
    ),
    "K8": _remove_batch_from_snapshot,
    # No write causes a cold snapshot, so a cold snapshot must not have new state batches.
    "K8:cold": changed_value_fault(
        *(Snapshot, lambda value: value.create_timestamp != value.write_timestamp),
        state_batches=edit_batches(lambda found: [*found, make_batch(9_000, 9_000, 2)]),
    ),
    "K9": lowered_limit_fault(updates_max=UPDATES_MAX - 3),
    "K10": _insert_update_after_tombstone,
    "K11": inserted_copy_fault(None),
    "K12": inserted_copy_fault(Update, batches_of),
    "K13": _change_last_complete_count,
    "K13:back": _decrease_complete_count,
    "K14": changed_value_fault(Update, delivery_complete_count=-1),
}
