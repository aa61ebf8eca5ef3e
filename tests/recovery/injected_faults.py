"""Inject faults into a state log, one fault for each audit check that needs only the log.

Each function injects a fault into a clean log. The function returns the audit limits that detect the fault,
if any.
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
FAULTS: dict[str, InjectFault] = {}


def fault(check: str) -> Callable[[InjectFault], InjectFault]:
    """Register a fault under the check that must find this fault; `R4:more` is another fault for R4."""

    def register(function: InjectFault) -> InjectFault:
        FAULTS[check] = function
        return function

    return register


def record_positions(
    log: Log, kind: type | None, wanted: Callable[[WrittenRecord], Any] = bool
) -> Iterator[tuple[int, int]]:
    """Yield (state partition, index) of records of a type, from the middle of each state partition on."""
    for number, records in log.items():
        for at in range(len(records) // 2, len(records)):
            value = records[at].record.value
            if isinstance(value, kind or type(None)) and wanted(records[at]):
                yield number, at


def change_value(log: Log, place: tuple[int, int], **changed: Any) -> None:
    """Change fields of a record's value."""
    number, at = place
    record = log[number][at].record
    value = msgspec.structs.replace(record.value, **changed)  # type: ignore[type-var]
    log[number][at] = replace(log[number][at], record=StateRecord(record.key, value))


def indexes_of_key(log: Log, place: tuple[int, int]) -> list[int]:
    """Return the indexes of the records of the same share-partition in its state partition."""
    number, at = place
    key = log[number][at].record.key
    return [n for n, each in enumerate(log[number]) if each.record.key == key]


def previous_record(log: Log, place: tuple[int, int]) -> WrittenRecord:
    """Return the previous record of the same share-partition."""
    mine = indexes_of_key(log, place)
    return log[place[0]][mine[mine.index(place[1]) - 1]]


def insert_record(log: Log, place: tuple[int, int], written: WrittenRecord) -> None:
    """Insert a record after the record at `place`, and renumber all records."""
    log[place[0]].insert(place[1] + 1, written)
    log.update(renumber_records(log))


def drop_records(log: Log, number: int, wanted: Callable[[int, WrittenRecord], bool]) -> None:
    """Remove records, and renumber the others."""
    log[number] = [each for at, each in enumerate(log[number]) if not wanted(at, each)]
    log.update(renumber_records(log))


def first_position(
    log: Log, kind: type | None, wanted: Callable[[WrittenRecord], Any] = bool
) -> tuple[int, int]:
    """Return the first position that `record_positions` yields."""
    return next(record_positions(log, kind, wanted))


def is_followed_by(kind: type, log: Log, place: tuple[int, int]) -> bool:
    return isinstance(previous_record(log, place).record.value, kind)


def record_batches(written: WrittenRecord) -> list[StateBatch]:
    """Return the batches of a record."""
    value = written.record.value
    assert isinstance(value, Snapshot | Update)
    return unpack(value.state_batches)


# Records.


@fault("R1")
def truncate_record_value(log: Log) -> None:
    number, at = first_position(log, Update)
    key, value = encode_record(log[number][at].record)
    assert value is not None
    log[number][at] = replace(log[number][at], raw=(key, value[:-3]))


@fault("R1:key")
def truncate_record_key(log: Log) -> None:
    number, at = first_position(log, Update)
    key, value = encode_record(log[number][at].record)
    log[number][at] = replace(log[number][at], raw=(key[:9], value))


@fault("R2")
def insert_record_of_unknown_type(log: Log) -> None:
    number, at = first_position(log, Update)
    insert_record(log, (number, at), replace(log[number][at], raw=(b"\0\x4dsomething", b"\0\0")))


@fault("R3")
def insert_update_key_without_value(log: Log) -> None:
    number, at = first_position(log, Update)
    key, _ = encode_record(log[number][at].record)
    insert_record(log, (number, at), replace(log[number][at], raw=(key, None)))


@fault("R4")
def store_acquired_delivery_state(log: Log) -> None:
    place = first_position(log, Update, record_batches)
    found = record_batches(log[place[0]][place[1]])
    change_value(log, place, state_batches=pack([found[0]._replace(delivery_state=1), *found[1:]]))


@fault("R4:inverted")
def store_inverted_batch(log: Log) -> None:
    place = first_position(log, Update, record_batches)
    found = record_batches(log[place[0]][place[1]])
    change_value(
        log, place, state_batches=pack([*found, make_batch(found[-1].last_offset + 9, found[-1].last_offset)])
    )


@fault("R5")
def store_overlapping_batches(log: Log) -> None:
    place = first_position(log, Update, record_batches)
    found = record_batches(log[place[0]][place[1]])
    change_value(log, place, state_batches=pack([*found, found[-1]]))


@fault("R6")
def store_batch_below_start_offset(log: Log) -> None:
    place = first_position(log, Update, lambda each: each.record.value.start_offset > 5)  # type: ignore[union-attr]
    written = log[place[0]][place[1]]
    start = written.record.value.start_offset  # type: ignore[union-attr]
    change_value(
        log, place, state_batches=pack([make_batch(start - 3, start - 2, 2), *record_batches(written)])
    )


@fault("R7")
def store_negative_complete_count(log: Log) -> None:
    change_value(log, first_position(log, Update), delivery_complete_count=-7)


@fault("R8")
def append_record_to_wrong_state_partition(log: Log) -> None:
    number, at = first_position(log, Snapshot)
    other = (number + 1) % len(log)
    log[other].append(replace(log[number][at], log_offset=len(log[other])))


@fault("R9")
def split_adjacent_batches(log: Log) -> None:
    place = first_position(
        log, Update, lambda each: any(one.last_offset > one.first_offset for one in record_batches(each))
    )
    found = []
    for one in record_batches(log[place[0]][place[1]]):
        found += [one._replace(last_offset=one.first_offset), one._replace(first_offset=one.first_offset + 1)]
    whole = [one for one in found if one.first_offset <= one.last_offset]
    change_value(log, place, state_batches=pack(whole))


@fault("R10")
def create_snapshot_after_its_write_time(log: Log) -> None:
    place = first_position(log, Snapshot, lambda each: each.record.value.create_timestamp)  # type: ignore[union-attr]
    value = log[place[0]][place[1]].record.value
    change_value(log, place, create_timestamp=value.write_timestamp + 1)  # type: ignore[union-attr]


@fault("R10:step")
def decrease_record_timestamp(log: Log) -> None:
    number, at = first_position(log, Update)
    log[number][at] = replace(log[number][at], timestamp_ms=log[number][at].timestamp_ms - 100_000)


# State partitions.


@fault("P1")
def leave_prunable_records(log: Log) -> Limits:
    number = next(iter(log))
    mine = indexes_of_key(log, (number, 0))
    for at in range(len(log[number])):
        if at not in mine[-1:]:
            key = log[number][at].record.key
            log[number][at] = replace(log[number][at], record=StateRecord(key, None))
    return CLEAN_LIMITS._replace(prune_backlog_max=20)


@fault("P1:prevent_pruning_by_old_snapshot")
def prevent_pruning_by_old_snapshot(log: Log) -> Limits:
    number = next(iter(log))
    at = indexes_of_key(log, (number, 0))
    drop_records(log, number, lambda place, each: place in at[1:])
    return CLEAN_LIMITS._replace(prune_backlog_max=20, cold_snapshot_interval_ms=1)


@fault("P2")
def remove_record_and_keep_offsets(log: Log) -> None:
    number, at = first_position(log, Update)
    del log[number][at]


@fault("P3")
def alternate_producers(log: Log) -> None:
    number, at = first_position(log, Update)
    for place in range(at, at + 9):
        producer = {"producer_id": 7 + place // 3 % 2, "producer_epoch": 0}
        log[number][place] = replace(log[number][place], batch=producer)


@fault("P3:epoch")
def decrease_producer_epoch(log: Log) -> None:
    number, at = first_position(log, Update)
    for place, epoch in ((at, 4), (at + 1, 3)):
        log[number][place] = replace(log[number][place], batch={"producer_id": 7, "producer_epoch": epoch})


@fault("P3:deposed")
def insert_record_of_deposed_owner(log: Log) -> None:
    number, at = first_position(log, Update)
    log[number] = [replace(each, owner_epoch=5) for each in log[number]]
    insert_record(log, (number, at), replace(log[number][at], owner_epoch=4))


@fault("P4")
def corrupt_batch_crc(log: Log) -> None:
    number, at = first_position(log, Update)
    log[number][at] = replace(log[number][at], spoilt=True)


@fault("P4:leader")
def decrease_leader_epoch_of_log(log: Log) -> None:
    number, at = first_position(log, Update)
    log[number][at] = replace(log[number][at], batch={"leader_epoch": 3})


@fault("P6")
def leave_transaction_open(log: Log) -> Limits:
    number, at = first_position(log, Update)
    log[number][at] = replace(
        log[number][at], batch={"producer_id": 7, "producer_epoch": 0}, attributes=TRANSACTIONAL
    )
    return CLEAN_LIMITS._replace(transaction_ms_max=1)


@fault("P7")
def exceed_load_time_limit(log: Log) -> Limits:
    return CLEAN_LIMITS._replace(replay_s_max=0.0001)
