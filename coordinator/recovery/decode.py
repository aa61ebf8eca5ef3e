"""Decode records into columns with NumPy; equivalent to `protocol.state_records.decode_record`.

The usual record layout is read from all records at once.  Records with another layout (unknown tags, an
unknown version, truncated bytes) are decoded one by one with `decode_record`.
"""

from dataclasses import dataclass, field, fields, replace
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from coordinator.log.claims import CLAIM_TYPE, RELEASE_TYPE, RENEWAL_TYPE
from coordinator.recovery.records import (
    NO_INTS,
    Bools,
    Bytes,
    ByteSpans,
    Ints,
    Records,
    unaligned_view,
)
from coordinator.recovery.schema import NONE
from protocol.errors import DecodeError
from protocol.messages.share_snapshot import ShareSnapshotValue
from protocol.messages.share_update import ShareUpdateValue
from protocol.state_batches import BATCH_BYTES
from protocol.state_records import SNAPSHOT_TYPE, UPDATE_TYPE, UnreadableValue, decode_record

_FIELDS = ("first_offset", "last_offset", "delivery_state", "delivery_count")
_BATCH = np.dtype([*zip(_FIELDS, (">i8", ">i8", "i1", ">i2"), strict=True), ("tags", "u1")])

# The columns of `DecodedRecords` that are fields of a record value.
_VALUE_COLUMNS = (
    *("snapshot_epoch", "state_epoch", "leader_epoch", "leader_epoch_max", "start_offset"),
    *("delivery_complete_count", "create_timestamp", "write_timestamp"),
)
_NOT_A_ROW_EACH = ("share_partitions", "batches", "unreadable", "claims", "unknown", "undecodable")

# The bytes of a record key without its group id: record type, length of the group id, topic id, partition.
_KEY_FIXED_BYTES = 24
_MARK_KEY_BYTES = 6

# The minimum size of a record value in bytes, by record type.
_VALUE_BYTES_MIN = {SNAPSHOT_TYPE: 40, UPDATE_TYPE: 20}

# The usual tagged fields: one of number 0 (DeliveryCompleteCount) and 4 bytes.
_COMPLETE = 0x040001


class RecordKind(IntEnum):
    """The kind of a record."""

    SNAPSHOT = 0
    UPDATE = 1
    TOMBSTONE = 2
    UNREADABLE = 3


class StateBatches(NamedTuple):
    """State batches of many records or states; `row` has the ascending row index of each batch."""

    row: Ints
    first_offset: Ints
    last_offset: Ints
    delivery_state: Ints
    delivery_count: Ints

    def take(self, rows: Bools | Ints) -> "StateBatches":
        """Return the selected batches."""
        return StateBatches(*(column[rows] for column in self))

    @classmethod
    def join(cls, *parts: "StateBatches") -> "StateBatches":
        """Concatenate batches."""
        return cls(*map(np.concatenate, zip(*parts, strict=True)))

    def pack(self) -> bytes:
        """Return the state batches as bytes in wire form."""
        table = np.zeros(len(self.row), _BATCH)
        for name in _FIELDS:
            table[name] = getattr(self, name)
        return table.tobytes()

    @classmethod
    def unpack(cls, row: Ints, packed: bytes) -> "StateBatches":
        """Convert state batches from wire form to columns; `row` has the row number of each batch."""
        table = np.frombuffer(packed, _BATCH)
        return cls(row, *(table[name].astype(np.int64) for name in _FIELDS))


NO_BATCHES = StateBatches(*(NO_INTS,) * 5)


@dataclass(slots=True)
class DecodedRecords:
    """The decoded records of share-partitions in log order, and the indexes of all other records.

    `key` is an index of `share_partitions`, which are record keys without the record type. `record` has the
    index of each decoded record among the input records. If a record has no such field, the value in the
    column is -1.
    """

    record: Ints
    log_offset: Ints
    timestamp_ms: Ints
    owner_epoch: Ints
    key: Ints
    share_partitions: list[bytes]
    kind: Ints
    snapshot_epoch: Ints
    state_epoch: Ints
    leader_epoch: Ints
    leader_epoch_max: Ints
    start_offset: Ints
    delivery_complete_count: Ints
    create_timestamp: Ints
    write_timestamp: Ints
    batches: StateBatches
    # The number of state batches of each record, before any batch is dropped.
    batch_count: Ints
    # The reason why a record is UNREADABLE, by its index.
    unreadable: dict[int, str] = field(default_factory=dict)
    # Indexes among the input records: claims, unknown record types, undecodable keys.
    claims: Ints = field(default_factory=lambda: NO_INTS)
    unknown: Ints = field(default_factory=lambda: NO_INTS)
    undecodable: Ints = field(default_factory=lambda: NO_INTS)

    def __len__(self) -> int:
        return len(self.record)

    def take(self, wanted: Bools) -> "DecodedRecords":
        """Return the selected share-partition records; all other fields are unchanged."""
        if wanted.all():
            return self
        new_row = np.cumsum(wanted) - 1
        batches = self.batches.take(wanted[self.batches.row])
        columns = {
            column.name: getattr(self, column.name)[wanted]
            for column in fields(self)
            if column.name not in _NOT_A_ROW_EACH
        }
        return replace(
            self,
            **columns,
            batches=batches._replace(row=new_row[batches.row]),
            unreadable={int(new_row[row]): why for row, why in self.unreadable.items() if wanted[row]},
        )


def decode(records: Records) -> DecodedRecords:
    """Decode the records of one state partition; the input has no records of control batches.

    This function does not remove records of fenced owners; see
    `coordinator.recovery.scan.FencedRecordFilter`.
    """
    rows, claims, unknown, undecodable = _classify_keys(records.keys)
    key, share_partitions, garbled = _number_share_partitions(records.keys, rows)
    if len(garbled):
        undecodable = np.sort(np.concatenate([undecodable, rows[garbled]]))
        rows, key = np.delete(rows, garbled), np.delete(key, garbled)
    keys, values = records.keys.take(rows), records.values.take(rows)
    record_type = unaligned_view(keys.data, ">i2")[keys.at].astype(np.int64)
    absent: dict[str, Any] = {name: np.full(len(rows), NONE, np.int64) for name in _VALUE_COLUMNS}
    decoded = DecodedRecords(
        record=rows,
        log_offset=records.log_offset[rows],
        timestamp_ms=records.timestamp_ms[rows],
        owner_epoch=records.owner_epoch[rows],
        key=key,
        share_partitions=share_partitions,
        kind=record_type.copy(),
        **absent,
        batches=NO_BATCHES,
        batch_count=np.zeros(len(rows), np.int64),
        claims=claims,
        unknown=unknown,
        undecodable=undecodable,
    )
    _decode_values(decoded, keys, values, record_type)
    return decoded


def _classify_keys(keys: ByteSpans) -> tuple[Ints, Ints, Ints, Ints]:
    """Classify records by key; return the indexes of share-partition, claim, unknown and undecodable records.

    Records that release or renew ownership are omitted.
    """
    typed = keys.length >= 2
    i2 = unaligned_view(keys.data, ">i2")
    record_type = np.where(typed, i2[np.where(typed, keys.at, 0)], NONE) if len(keys.at) else keys.at
    ours = typed & ((record_type == SNAPSHOT_TYPE) | (record_type == UPDATE_TYPE))
    marks = typed & (keys.length == _MARK_KEY_BYTES)
    claims = marks & (record_type == CLAIM_TYPE)
    others = marks & ((record_type == RELEASE_TYPE) | (record_type == RENEWAL_TYPE))
    whole = ours & (keys.length >= _KEY_FIXED_BYTES)
    group_bytes = i2[np.where(whole, keys.at + 2, 0)].astype(np.int64) if len(keys.at) else keys.at
    whole &= (group_bytes >= 0) & (keys.length == _KEY_FIXED_BYTES + group_bytes)
    undecodable = ~typed | (ours & ~whole)
    return (
        np.flatnonzero(whole),
        np.flatnonzero(claims),
        np.flatnonzero(typed & ~ours & ~claims & ~others),
        np.flatnonzero(undecodable),
    )


def _number_share_partitions(keys: ByteSpans, rows: Ints) -> tuple[Ints, list[bytes], Ints]:
    """Give each share-partition of the records a number; also return which records have an invalid group id.

    The record type is not compared: it is the only difference between the keys of snapshots and updates of a
    share-partition.
    """
    if not len(rows):
        return rows, [], rows
    bare = ByteSpans(keys.data, keys.at[rows] + 2, keys.length[rows] - 2)
    encoded = bare.views().dictionary_encode()
    key = encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
    share_partitions: list[bytes] = encoded.dictionary.cast(pa.binary()).to_pylist()
    bad = [number for number, identity in enumerate(share_partitions) if not _is_valid_utf8(identity[2:-20])]
    return key, share_partitions, np.flatnonzero(np.isin(key, bad)) if bad else NO_INTS


def _is_valid_utf8(group_id: bytes) -> bool:
    if group_id.isascii():
        return True
    try:
        group_id.decode()
    except UnicodeDecodeError:
        return False
    return True


def _decode_values(decoded: DecodedRecords, keys: ByteSpans, values: ByteSpans, record_type: Ints) -> None:
    data, at, end = values.data, values.at, values.at + values.length
    deletes = (record_type == SNAPSHOT_TYPE) & (values.length < 0)
    decoded.kind[deletes] = RecordKind.TOMBSTONE
    snapshot = (record_type == SNAPSHOT_TYPE) & ~deletes
    least = np.where(snapshot, _VALUE_BYTES_MIN[SNAPSHOT_TYPE], _VALUE_BYTES_MIN[UPDATE_TYPE])
    # Records that are too short use position 0 instead, which is always valid memory.
    readable = ~deletes & (values.length >= least)
    at = np.where(readable, at, 0)
    readable &= unaligned_view(data, ">i2")[at] == 0
    count, behind = _read_state_batch_counts(data, at + np.where(snapshot, 38, 18))
    tags_at = behind + BATCH_BYTES * count
    readable &= (count >= 0) & (tags_at < end)
    tags_at = np.where(readable, tags_at, 0)
    count = np.where(readable, count, 0)
    complete, regular = _read_delivery_complete_counts(data, tags_at, end)
    readable &= regular
    count = np.where(readable, count, 0)
    batches, tagged = _read_batches(data, behind, count)
    if len(tagged):
        readable[tagged] = False
        count[tagged] = 0
        batches = batches.take(~np.isin(batches.row, tagged))
    i4, i8 = unaligned_view(data, ">i4"), unaligned_view(data, ">i8")
    rows = np.flatnonzero(readable)
    where, is_snapshot = at[rows], snapshot[rows]
    decoded.snapshot_epoch[rows] = i4[where + 2]
    decoded.leader_epoch[rows] = i4[where + np.where(is_snapshot, 10, 6)]
    decoded.start_offset[rows] = i8[where + np.where(is_snapshot, 14, 10)]
    decoded.delivery_complete_count[rows] = complete[rows]
    rows, where = rows[is_snapshot], where[is_snapshot]
    decoded.state_epoch[rows] = i4[where + 6]
    decoded.create_timestamp[rows] = i8[where + 22]
    decoded.write_timestamp[rows] = i8[where + 30]
    decoded.batches, decoded.batch_count = batches, count
    others = np.flatnonzero(~readable & ~deletes)
    if len(others):
        _decode_one_by_one(decoded, keys, values, others)


def _read_state_batch_counts(data: Bytes, at: Ints) -> tuple[Ints, Ints]:
    """Read the number of state batches at each position (-1: null or invalid), and the position after it."""
    byte = data[at]
    count = (byte & 0x7F).astype(np.int64)
    behind = at + 1
    more = np.flatnonzero(byte & 0x80)
    shift = 7
    while len(more):
        byte = data[np.minimum(behind[more], len(data) - 1)]
        count[more] |= (byte & 0x7F).astype(np.int64) << shift
        behind[more] += 1
        more = more[(byte & 0x80) != 0]
        shift += 7
        if shift > 28:
            count[more] = 0
            break
    return count - 1, behind


def _read_delivery_complete_counts(data: Bytes, at: Ints, end: Ints) -> tuple[Ints, Bools]:
    """Read the tagged field DeliveryCompleteCount of record values; -1 if a value does not have it.

    Also return which values have no other tagged fields and no trailing bytes.
    """
    complete = np.full(len(at), NONE, np.int64)
    regular = (data[at] == 0) & (at + 1 == end)
    rest = np.flatnonzero(~regular)
    if len(rest):
        at, end = at[rest], end[rest]
        is_complete = (unaligned_view(data, "<u4")[at] & 0xFFFFFF == _COMPLETE) & (at + 7 == end)
        complete[rest[is_complete]] = unaligned_view(data, ">i4")[at[is_complete] + 3]
        regular[rest] = is_complete
    return complete, regular


def _read_batches(data: Bytes, begin: Ints, count: Ints) -> tuple[StateBatches, Ints]:
    """Read `count` state batches from each position; also return the rows with tagged fields in a batch."""
    total = int(count.sum())
    if not total:
        return NO_BATCHES, NO_BATCHES.row
    row = np.repeat(np.arange(len(count)), count)
    ahead = np.cumsum(count) - count
    at = np.repeat(begin - BATCH_BYTES * ahead, count) + BATCH_BYTES * np.arange(total)
    wide, short = unaligned_view(data, ">i8"), unaligned_view(data, ">i2")
    batches = StateBatches(
        row,
        wide[at].astype(np.int64),
        wide[at + 8].astype(np.int64),
        data[at + 16].view(np.int8).astype(np.int64),
        short[at + 17].astype(np.int64),
    )
    tagged = np.unique(row[data[at + BATCH_BYTES - 1] != 0])
    return batches, tagged


def _decode_one_by_one(decoded: DecodedRecords, keys: ByteSpans, values: ByteSpans, rows: Ints) -> None:
    """Decode the records with the given indexes one by one with `decode_record`."""
    packed: dict[int, bytes] = {}
    for row in rows.tolist():
        try:
            record = decode_record(keys.get(row), values.get(row))
        except DecodeError as error:
            raise AssertionError("the key was decoded before") from error
        assert record is not None
        value = record.value
        if isinstance(value, UnreadableValue):
            decoded.kind[row] = RecordKind.UNREADABLE
            decoded.unreadable[row] = value.reason
            continue
        assert isinstance(value, ShareSnapshotValue | ShareUpdateValue)
        for name in _VALUE_COLUMNS:
            getattr(decoded, name)[row] = getattr(value, name, NONE)
        packed[row] = bytes(value.state_batches)
    if any(packed.values()):
        counts = [len(each) // BATCH_BYTES for each in packed.values()]
        decoded.batch_count[list(packed)] = counts
        row = np.repeat(np.asarray(list(packed), np.int64), counts)
        late = StateBatches.unpack(row, b"".join(packed.values()))
        both = StateBatches.join(decoded.batches, late)
        decoded.batches = both.take(np.argsort(both.row, kind="stable"))
