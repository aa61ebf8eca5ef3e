"""Inject faults into a state log, one fault for each audit check that needs only the log.

A fault is a function that changes a clean log. If an audit detects the fault only with other limits, the
function returns these limits.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import msgspec

from coordinator.recovery.checks.limits import Limits
from protocol.messages.share_snapshot import ShareSnapshotValue as Snapshot
from protocol.messages.share_update import ShareUpdateValue as Update
from protocol.state_batches import StateBatch, pack, unpack
from protocol.state_records import StateRecord, encode_record
from tests.recovery.share_groups import UPDATES_MAX, Log, WrittenRecord, make_batch, renumber_records

CLEAN_LIMITS = Limits(updates_max=UPDATES_MAX)
CONTROL, TRANSACTIONAL = 0x20, 0x10

InjectFault = Callable[[Log], Limits | None]
# A state partition, and the index of a record in its log.
Position = tuple[int, int]


def record_positions(
    log: Log, kind: type | None, wanted: Callable[[Any], Any] = lambda value: True, *, after: type = object
) -> Iterator[Position]:
    """Yield positions of records of a record type, from the middle of each state partition on.

    `wanted` selects records by their value, `after` by the type of the share-partition's previous record.
    """
    for number, records in log.items():
        for at in range(len(records) // 2, len(records)):
            value = records[at].record.value
            if (
                isinstance(value, kind or type(None))
                and wanted(value)
                and (after is object or isinstance(previous_record(log, (number, at)).record.value, after))
            ):
                yield number, at


def first_position(log: Log, *selected: Any, **more: Any) -> Position:
    """Return the first position that `record_positions` yields."""
    return next(record_positions(log, *selected, **more))


def indexes_of_key(log: Log, place: Position) -> list[int]:
    """Return the indexes of the records of the same share-partition in its state partition."""
    number, at = place
    key = log[number][at].record.key
    return [n for n, each in enumerate(log[number]) if each.record.key == key]


def previous_record(log: Log, place: Position) -> WrittenRecord:
    """Return the previous record of the same share-partition."""
    mine = indexes_of_key(log, place)
    return log[place[0]][mine[mine.index(place[1]) - 1]]


def insert_record(log: Log, place: Position, written: WrittenRecord) -> None:
    """Insert a record after the record at `place`, and renumber all records."""
    log[place[0]].insert(place[1] + 1, written)
    log.update(renumber_records(log))


def drop_records(log: Log, number: int, wanted: Callable[[int, WrittenRecord], bool]) -> None:
    """Remove records, and renumber the others."""
    log[number] = [each for at, each in enumerate(log[number]) if not wanted(at, each)]
    log.update(renumber_records(log))


def _compute_new_values(fields: dict[str, Any], old: Any) -> dict[str, Any]:
    return {name: new(old) if callable(new) else new for name, new in fields.items()}


def change_value(log: Log, place: Position, **fields: Any) -> None:
    """Change fields of a record's value; a function in `fields` computes the new value from the old."""
    number, at = place
    record = log[number][at].record
    value = msgspec.structs.replace(record.value, **_compute_new_values(fields, record.value))  # type: ignore[type-var]
    log[number][at] = replace(log[number][at], record=StateRecord(record.key, value))


def changed_value_fault(*selected: Any, after: type = object, **fields: Any) -> InjectFault:
    """Return a fault that changes fields of the value of the first selected record."""
    return lambda log: change_value(log, first_position(log, *selected, after=after), **fields)


def changed_storage_fault(*selected: Any, **fields: Any) -> InjectFault:
    """Return a fault that changes how the first selected record is stored (its key, value or batch)."""

    def inject(log: Log) -> None:
        number, at = first_position(log, *selected)
        log[number][at] = replace(log[number][at], **_compute_new_values(fields, log[number][at]))

    return inject


def inserted_copy_fault(*selected: Any, **fields: Any) -> InjectFault:
    """Return a fault that inserts a changed copy of the first selected record after that record."""

    def inject(log: Log) -> None:
        number, at = first_position(log, *selected)
        written = log[number][at]
        insert_record(log, (number, at), replace(written, **_compute_new_values(fields, written)))

    return inject


def lowered_limit_fault(**limits: Any) -> InjectFault:
    """Return a fault that does not change the log, but lowers limits so that the log exceeds them."""
    return lambda log: CLEAN_LIMITS._replace(**limits)


def batches_of(value: Any) -> list[StateBatch]:
    """Return the state batches of a record's value."""
    return unpack(value.state_batches)


def edit_batches(function: Callable[[list[StateBatch]], list[StateBatch]]) -> Callable[[Any], bytes]:
    """Return a function that changes the state batches of a record's value."""
    return lambda value: pack(function(batches_of(value)))


def cut_record(key_bytes: int | None, value_bytes: int | None) -> Callable[[WrittenRecord], Any]:
    """Return a function that truncates a record's stored key and value to these sizes."""

    def truncate(written: WrittenRecord) -> tuple[bytes, bytes]:
        key, value = encode_record(written.record)
        return key[:key_bytes], (value or b"")[:value_bytes]

    return truncate


def _split_batches(found: list[StateBatch]) -> list[StateBatch]:
    """Split each state batch into its first offset and the rest."""
    parts = []
    for one in found:
        parts += [one._replace(last_offset=one.first_offset), one._replace(first_offset=one.first_offset + 1)]
    return [one for one in parts if one.first_offset <= one.last_offset]


def _append_to_wrong_state_partition(log: Log) -> None:
    number, at = first_position(log, Snapshot)
    other = (number + 1) % len(log)
    log[other].append(replace(log[number][at], log_offset=len(log[other])))


def _leave_prunable_records(log: Log) -> Limits:
    number = next(iter(log))
    mine = indexes_of_key(log, (number, 0))
    for at in range(len(log[number])):
        if at not in mine[-1:]:
            key = log[number][at].record.key
            log[number][at] = replace(log[number][at], record=StateRecord(key, None))
    return CLEAN_LIMITS._replace(prune_backlog_max=20)


def _prevent_pruning_by_old_snapshot(log: Log) -> Limits:
    number = next(iter(log))
    at = indexes_of_key(log, (number, 0))
    drop_records(log, number, lambda place, each: place in at[1:])
    return CLEAN_LIMITS._replace(prune_backlog_max=20, cold_snapshot_interval_ms=1)


def _remove_record_and_keep_offsets(log: Log) -> None:
    number, at = first_position(log, Update)
    del log[number][at]


def _write_as_producers(*producers: tuple[int, int]) -> InjectFault:
    """Return a function that sets the producer ids and epochs of consecutive records."""

    def inject(log: Log) -> None:
        number, at = first_position(log, Update)
        for place, (producer_id, epoch) in enumerate(producers, at):
            producer = {"producer_id": producer_id, "producer_epoch": epoch}
            log[number][place] = replace(log[number][place], batch=producer)

    return inject


def _insert_record_of_deposed_owner(log: Log) -> None:
    number, at = first_position(log, Update)
    log[number] = [replace(each, owner_epoch=5) for each in log[number]]
    insert_record(log, (number, at), replace(log[number][at], owner_epoch=4))


def _leave_transaction_open(log: Log) -> Limits:
    producer = {"producer_id": 7, "producer_epoch": 0}
    changed_storage_fault(Update, batch=producer, attributes=TRANSACTIONAL)(log)
    return CLEAN_LIMITS._replace(transaction_ms_max=1)


# The faults, by the id of the check that must find each; `R4:inverted` is a second fault for check R4.
FAULTS: dict[str, InjectFault] = {
    "R1": changed_storage_fault(Update, raw=cut_record(None, -3)),
    "R1:key": changed_storage_fault(Update, raw=cut_record(9, None)),
    "R2": inserted_copy_fault(Update, raw=(b"\0\x4dsomething", b"\0\0")),
    "R3": inserted_copy_fault(Update, raw=lambda written: (encode_record(written.record)[0], None)),
    # The delivery state 1 (acquired) is never stored.
    "R4": changed_value_fault(
        *(Update, batches_of),
        state_batches=edit_batches(lambda found: [found[0]._replace(delivery_state=1), *found[1:]]),
    ),
    "R4:inverted": changed_value_fault(
        *(Update, batches_of),
        state_batches=edit_batches(
            lambda found: [*found, make_batch(found[-1].last_offset + 9, found[-1].last_offset)]
        ),
    ),
    "R5": changed_value_fault(
        Update, batches_of, state_batches=edit_batches(lambda found: [*found, found[-1]])
    ),
    "R6": changed_value_fault(
        *(Update, lambda value: value.start_offset > 5),
        state_batches=lambda value: pack(
            [make_batch(value.start_offset - 3, value.start_offset - 2, 2), *batches_of(value)]
        ),
    ),
    "R7": changed_value_fault(Update, delivery_complete_count=-7),
    "R8": _append_to_wrong_state_partition,
    "R9": changed_value_fault(
        *(Update, lambda value: any(one.last_offset > one.first_offset for one in batches_of(value))),
        state_batches=edit_batches(_split_batches),
    ),
    "R10": changed_value_fault(
        *(Snapshot, lambda value: value.create_timestamp),
        create_timestamp=lambda value: value.write_timestamp + 1,
    ),
    "R10:step": changed_storage_fault(Update, timestamp_ms=lambda written: written.timestamp_ms - 100_000),
    "P1": _leave_prunable_records,
    "P1:old_snapshot": _prevent_pruning_by_old_snapshot,
    "P2": _remove_record_and_keep_offsets,
    "P3": _write_as_producers(*((7 + number // 3 % 2, 0) for number in range(9))),
    "P3:epoch": _write_as_producers((7, 4), (7, 3)),
    "P3:deposed": _insert_record_of_deposed_owner,
    "P4": changed_storage_fault(Update, spoilt=True),
    "P4:leader": changed_storage_fault(Update, batch={"leader_epoch": 3}),
    "P6": _leave_transaction_open,
    "P7": lowered_limit_fault(replay_s_max=0.0001),
}
