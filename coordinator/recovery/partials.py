"""Hold partial states as NumPy columns, and convert them from and to Arrow rows of `PARTIALS`."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from coordinator.recovery.batch_overlay import (
    LOWEST_OFFSET,
    join_batches,
    remove_offsets_below,
    renumber_rows,
)
from coordinator.recovery.decode import (
    DecodedRecords,
    RecordKind,
    StateBatches,
    packed_batches,
    unpack_columns,
)
from coordinator.recovery.records import Bools, Ints, column_to_ints
from coordinator.recovery.schema import CONTINUES, FORGETS, NONE, PARTIALS, REPLACES
from coordinator.shard.batches import NO_START_OFFSET
from coordinator.shard.state import NO_LEADER_EPOCH, RECORD_OVERHEAD_BYTES
from protocol.state_batches import BATCH_BYTES

# The names of the columns with one number for each row.
NUMBERS = tuple(
    name
    for name in PARTIALS.names
    if name not in ("share_partition", "batches", "loose_batches", "unreadable")
)

# State partition, and record key without its type. If the number of state partitions was changed, a
# share-partition may be in two of them.
Name = tuple[int, bytes]


@dataclass(slots=True)
class PartialStates:
    """Partial states (see `fold`); the rows of one share-partition are in log order.

    `key` is an index of `names`; `numbers` has the columns `NUMBERS`.  The batches of a row are merged by
    folding; before, they may overlap and have any order.
    """

    names: list[Name]
    key: Ints
    numbers: dict[str, Ints]
    batches: StateBatches
    loose_batches: StateBatches
    unreadable: dict[int, str] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.key)

    def __getitem__(self, name: str) -> Ints:
        return self.numbers[name]

    def take(self, wanted: Bools | Ints) -> "PartialStates":
        """Return the selected rows, in the given order; `names` stays unchanged."""
        if wanted.dtype == np.bool_:
            if wanted.all():
                return self
            wanted = np.flatnonzero(wanted)
        new_row = np.full(len(self), NONE, np.int64)
        new_row[wanted] = np.arange(len(wanted))
        return PartialStates(
            self.names,
            self.key[wanted],
            {name: column[wanted] for name, column in self.numbers.items()},
            renumber_rows(self.batches, new_row),
            renumber_rows(self.loose_batches, new_row),
            {int(new_row[row]): why for row, why in self.unreadable.items() if new_row[row] >= 0},
        )

    def to_arrow(self) -> pa.RecordBatch:
        """Return rows of `PARTIALS`; `batches` and `loose_batches` must be sorted by row."""
        columns: list[Any] = []
        for column in PARTIALS:
            if column.name == "share_partition":
                identities = pa.array([identity for _, identity in self.names], pa.binary())
                columns.append(identities.take(pa.array(self.key)))
            elif column.name == "unreadable":
                columns.append(
                    pa.array([self.unreadable.get(row) for row in range(len(self))], pa.string())
                    if self.unreadable
                    else pa.nulls(len(self), pa.string())
                )
            elif column.name in ("batches", "loose_batches"):
                columns.append(_pack_column(getattr(self, column.name), len(self)))
            else:
                columns.append(pa.array(self.numbers[column.name]).cast(column.type))
        return pa.record_batch(columns, schema=PARTIALS)


def _pack_column(batches: StateBatches, rows: int) -> pa.Array:
    counts = np.bincount(batches.row, minlength=rows)
    offsets = np.zeros(rows + 1, np.int32)
    offsets[1:] = np.cumsum(counts) * BATCH_BYTES
    return pa.Array.from_buffers(
        pa.binary(), rows, [None, pa.py_buffer(offsets), pa.py_buffer(packed_batches(batches))]
    )


def partials_from_arrow(rows: pa.RecordBatch | pa.Table) -> PartialStates:
    """Read rows of `PARTIALS`, and sort them by log offset."""
    if isinstance(rows, pa.Table):
        rows = rows.combine_chunks()
    identities = rows.column("share_partition")
    if isinstance(identities, pa.ChunkedArray):
        identities = identities.combine_chunks()
    encoded = identities.dictionary_encode()
    texts: list[bytes] = encoded.dictionary.to_pylist()
    identity = encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
    columns = {name: column_to_ints(rows.column(name)) for name in NUMBERS}
    pairs, key = np.unique(columns["state_partition"] * max(len(texts), 1) + identity, return_inverse=True)
    names = [(int(pair) // len(texts), texts[int(pair) % len(texts)]) for pair in pairs]
    reasons = rows.column("unreadable")
    unreadable = {}
    if reasons.null_count < len(rows):
        unreadable = {row: why for row, why in enumerate(reasons.to_pylist()) if why is not None}
    found = PartialStates(
        names,
        key.astype(np.int64),
        columns,
        _unpack_column(rows.column("batches")),
        _unpack_column(rows.column("loose_batches")),
        unreadable,
    )
    return found.take(np.argsort(found["last_log_offset"], kind="stable"))


def _unpack_column(column: Any) -> StateBatches:
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    rows = len(column)
    _, offsets_buffer, data = column.buffers()
    if not rows or data is None:
        return unpack_columns(np.zeros(0, np.int64), b"")
    offsets = np.frombuffer(offsets_buffer, np.int32, rows + 1, column.offset * 4).astype(np.int64)
    counts = np.diff(offsets) // BATCH_BYTES
    return unpack_columns(np.repeat(np.arange(rows), counts), memoryview(data)[offsets[0] : offsets[-1]])


def concatenate_partials(parts: Sequence[PartialStates]) -> PartialStates:
    """Concatenate partial states with the same `names`."""
    if len(parts) == 1:
        return parts[0]
    begins = np.cumsum([0, *(len(part) for part in parts)]).tolist()
    return PartialStates(
        parts[0].names,
        np.concatenate([part.key for part in parts]),
        {name: np.concatenate([part.numbers[name] for part in parts]) for name in NUMBERS},
        join_batches(*(_shift_rows(part.batches, by) for part, by in zip(parts, begins, strict=False))),
        join_batches(*(_shift_rows(part.loose_batches, by) for part, by in zip(parts, begins, strict=False))),
        {
            row + by: why
            for part, by in zip(parts, begins, strict=False)
            for row, why in part.unreadable.items()
        },
    )


def _shift_rows(batches: StateBatches, by: int) -> StateBatches:
    return batches._replace(row=batches.row + by)


def batch_floors(start_offset: Ints) -> Ints:
    """Return start offsets, with -1 (not known) replaced by an offset that no batch is below."""
    return np.where(start_offset == NO_START_OFFSET, LOWEST_OFFSET, start_offset)


def partials_from_records(
    decoded: DecodedRecords,
    key: Ints,
    names: list[Name],
    *,
    state_partition: int,
    range_start: int,
    claimed: Bools,
) -> PartialStates:
    """Return one partial state for each record; `key` has the index in `names` of each record."""
    rows = len(decoded)
    kind = decoded.kind
    snapshot, update, tombstone = (
        kind == each for each in (RecordKind.SNAPSHOT, RecordKind.UPDATE, RecordKind.TOMBSTONE)
    )
    zero, none = np.zeros(rows, np.int64), np.full(rows, NONE, np.int64)
    leader_epoch_max = np.maximum(np.where(snapshot | update, decoded.leader_epoch, 0), 0)
    floor = batch_floors(decoded.start_offset)
    columns = {
        "state_partition": np.full(rows, state_partition, np.int64),
        "range_start": np.full(rows, range_start, np.int64),
        "owner_epoch": decoded.owner_epoch,
        "claimed": claimed.astype(np.int64),
        "last_log_offset": decoded.log_offset,
        "needed_from": decoded.log_offset,
        "effect": np.select([snapshot, tombstone], [REPLACES, FORGETS], CONTINUES),
        "exists": (~tombstone).astype(np.int64),
        "snapshot_epoch": np.where(snapshot | update, decoded.snapshot_epoch, 0),
        "state_epoch": np.where(snapshot, decoded.state_epoch, 0),
        # In an update, -1 means unchanged; in a snapshot it is the leader epoch.
        "leader_epoch": np.where(snapshot | update, decoded.leader_epoch, NO_LEADER_EPOCH),
        "leader_epoch_max": np.maximum(leader_epoch_max, np.where(snapshot, decoded.leader_epoch_max, 0)),
        "start_offset": np.where(snapshot | update, decoded.start_offset, NO_START_OFFSET),
        "start_offset_max": np.where(snapshot | update, floor, LOWEST_OFFSET),
        "delivery_complete_count": np.where(snapshot | update, decoded.delivery_complete_count, none),
        "create_timestamp": np.where(snapshot, decoded.create_timestamp, 0),
        "write_timestamp": np.where(snapshot, decoded.write_timestamp, 0),
        "last_write_ms": np.where(tombstone, 0, decoded.timestamp_ms),
        "records": zero + 1,
        "updates": update.astype(np.int64),
        "update_bytes": np.where(update, RECORD_OVERHEAD_BYTES + BATCH_BYTES * decoded.batch_count, 0),
    }
    batches = remove_offsets_below(decoded.batches, floor[decoded.batches.row])
    loose = (update & (decoded.start_offset == NO_START_OFFSET))[batches.row]
    return PartialStates(
        names, key, columns, batches.take(~loose), batches.take(loose), dict(decoded.unreadable)
    )
