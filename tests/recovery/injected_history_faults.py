"""Inject faults into the history of a share-partition; `injected_faults` has faults of records and logs."""

from dataclasses import replace

from coordinator.recovery.checks.limits import Limits
from protocol.messages.share_snapshot import ShareSnapshotValue as Snapshot
from protocol.messages.share_update import ShareUpdateValue as Update
from protocol.state_batches import pack
from protocol.state_records import StateRecord
from tests.recovery.injected_faults import (
    CLEAN_LIMITS,
    FAULTS,
    change_value,
    drop_records,
    fault,
    first_position,
    indexes_of_key,
    insert_record,
    is_followed_by,
    previous_record,
    record_batches,
    record_positions,
)
from tests.recovery.share_groups import UPDATES_MAX, Log, make_batch

__all__ = ["FAULTS"]


@fault("K1")
def prune_snapshot_before_updates(log: Log) -> None:
    place = first_position(log, Update)
    mine = indexes_of_key(log, place)
    drop_records(log, place[0], lambda at, each: at in mine and not isinstance(each.record.value, Update))


@fault("K1b")
def prune_first_half_of_log(log: Log) -> None:
    number = next(iter(log))
    drop_records(log, number, lambda at, each: at < len(log[number]) // 2)


@fault("K2")
def increase_snapshot_epoch_of_update(log: Log) -> None:
    place = first_position(log, Update)
    change_value(log, place, snapshot_epoch=log[place[0]][place[1]].record.value.snapshot_epoch + 1)  # type: ignore[union-attr]


@fault("K2:late")
def decrease_snapshot_epoch_of_update(log: Log) -> None:
    place = first_position(log, Update, lambda each: each.record.value.snapshot_epoch > 1)  # type: ignore[union-attr]
    change_value(log, place, snapshot_epoch=0)


@fault("K3")
def remove_snapshot(log: Log) -> None:
    place = first_position(log, Snapshot, lambda each: each.record.value.snapshot_epoch > 1)  # type: ignore[union-attr]
    drop_records(log, place[0], lambda at, each: at == place[1])


@fault("K4")
def increase_first_snapshot_epoch(log: Log) -> None:
    place = first_position(log, Snapshot, lambda each: each.record.value.snapshot_epoch == 0)  # type: ignore[union-attr]
    change_value(log, place, snapshot_epoch=4)


@fault("K5")
def decrease_state_epoch_of_snapshot(log: Log) -> None:
    place = first_position(log, Snapshot, lambda each: each.record.value.snapshot_epoch > 0)  # type: ignore[union-attr]
    change_value(log, place, state_epoch=0, leader_epoch=9)


@fault("K6")
def decrease_leader_epoch_of_update(log: Log) -> None:
    place = first_position(log, Update, lambda each: each.record.value.leader_epoch > 0)  # type: ignore[union-attr]
    change_value(log, place, leader_epoch=0)


@fault("K7")
def decrease_start_offset_of_update(log: Log) -> None:
    place = next(
        place
        for place in record_positions(log, Update, lambda each: each.record.value.start_offset > 9)  # type: ignore[union-attr]
        if is_followed_by(Update, log, place)
    )
    change_value(log, place, start_offset=3)


@fault("K7:snapshot")
def decrease_start_offset_of_snapshot(log: Log) -> None:
    place = next(
        place
        for place in record_positions(
            log, Snapshot, lambda each: each.record.value.start_offset > 9 and record_batches(each)
        )  # type: ignore[union-attr]
        if is_followed_by(Update, log, place)
    )
    change_value(log, place, start_offset=3)


@fault("K8")
def remove_batch_from_snapshot(log: Log) -> None:
    place = next(
        place
        for place in record_positions(log, Snapshot, lambda each: len(record_batches(each)) > 1)
        if is_followed_by(Update, log, place)
        and log[place[0]][place[1]].record.value.state_epoch == state_epoch_before(log, place)  # type: ignore[union-attr]
    )
    change_value(log, place, state_batches=pack(record_batches(log[place[0]][place[1]])[1:]))


def state_epoch_before(log: Log, place: tuple[int, int]) -> int:
    """Return the state epoch of the previous snapshot."""
    return [
        value.state_epoch
        for at in indexes_of_key(log, place)
        if at < place[1] and isinstance(value := log[place[0]][at].record.value, Snapshot)
    ][-1]


@fault("K8:cold")
def add_batch_to_cold_snapshot(log: Log) -> None:
    place = first_position(
        log,
        Snapshot,
        lambda each: each.record.value.create_timestamp != each.record.value.write_timestamp,  # type: ignore[union-attr]
    )
    found = record_batches(log[place[0]][place[1]])
    change_value(log, place, state_batches=pack([*found, make_batch(9_000, 9_000, 2)]))


@fault("K9")
def exceed_update_limit(log: Log) -> Limits:
    return CLEAN_LIMITS._replace(updates_max=UPDATES_MAX - 3)


@fault("K10")
def insert_update_after_tombstone(log: Log) -> None:
    number, at = first_position(log, None)
    log[number][at] = replace(log[number][at], record=StateRecord(log[number][at].record.key, None))
    key = log[number][at].record.key
    insert_record(
        log, (number, at), replace(log[number][at], record=StateRecord(key, Update(0, 1, 9, b"", 0)))
    )


@fault("K11")
def duplicate_tombstone(log: Log) -> None:
    number, at = first_position(log, None)
    insert_record(log, (number, at), log[number][at])


@fault("K12")
def duplicate_update(log: Log) -> None:
    number, at = first_position(log, Update, record_batches)
    insert_record(log, (number, at), log[number][at])


@fault("K13")
def change_last_complete_count(log: Log) -> None:
    last = {each.record.key: (number, at) for number, log_ in log.items() for at, each in enumerate(log_)}
    place = next(place for place in last.values() if isinstance(log[place[0]][place[1]].record.value, Update))
    change_value(log, place, delivery_complete_count=99)


@fault("K13:back")
def decrease_complete_count(log: Log) -> None:
    place = next(
        place
        for place in record_positions(log, Update)
        if is_followed_by(Update, log, place)
        and (earlier := previous_record(log, place).record.value)
        and log[place[0]][place[1]].record.value.start_offset == earlier.start_offset  # type: ignore[union-attr]
        and earlier.delivery_complete_count > 0  # type: ignore[union-attr]
    )
    change_value(log, place, delivery_complete_count=0)


@fault("K14")
def remove_complete_count(log: Log) -> None:
    change_value(log, first_position(log, Update), delivery_complete_count=-1)
