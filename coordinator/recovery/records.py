"""Hold the records of one state partition as NumPy columns, and convert them from and to Arrow.

A column of byte strings is a buffer with positions and lengths; the bytes are copied only for Arrow. A buffer
ends with `PADDING_BYTES` zeros, so that eight bytes can be read at any position.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from coordinator.recovery.schema import NONE, RECORDS

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
Bytes = NDArray[np.uint8]

NO_INTS: Ints = np.zeros(0, np.int64)

PADDING_BYTES = 64
CONTROL = 0x20

_VIEW_INLINE_MAX = 12


def pad_bytes(*parts: bytes | memoryview | Bytes) -> Bytes:
    """Return the bytes as an array, followed by `PADDING_BYTES` zeros."""
    arrays = [np.frombuffer(part, np.uint8) if not isinstance(part, np.ndarray) else part for part in parts]
    return np.concatenate([*arrays, np.zeros(PADDING_BYTES, np.uint8)])


def unaligned_view(data: Bytes, dtype: str) -> NDArray[Any]:
    """Return an array whose element i is the number of this type that begins at byte i of the data."""
    size = np.dtype(dtype).itemsize
    return np.ndarray((max(len(data) - size + 1, 0),), dtype, data.data, 0, (1,))


class ByteSpans(NamedTuple):
    """Byte strings in a buffer: the position and the length of each; a null string has length -1."""

    data: Bytes
    at: Ints
    length: Ints

    def take(self, rows: Ints | Bools) -> "ByteSpans":
        """Return the selected byte strings."""
        return ByteSpans(self.data, self.at[rows], self.length[rows])

    def get(self, row: int) -> bytes | None:
        """Return one byte string; None if it is null."""
        at, length = int(self.at[row]), int(self.length[row])
        return None if length < 0 else self.data[at : at + length].tobytes()

    def views(self) -> pa.Array:
        """Return an Arrow binary-view array; only strings of at most 12 bytes are copied.

        The buffer must be shorter than 2 GiB.
        """
        rows = len(self.at)
        length = np.maximum(self.length, 0)
        views = np.zeros((rows, 4), np.int32)
        views[:, 0] = length
        views[:, 1] = unaligned_view(self.data, "<i4")[self.at]
        views[:, 3] = self.at
        inline = np.flatnonzero(length <= _VIEW_INLINE_MAX)
        if len(inline):
            place = np.arange(_VIEW_INLINE_MAX)
            chars = self.data[self.at[inline, None] + place]
            chars[place >= length[inline, None]] = 0
            views[inline, 1:] = chars.view(np.int32)
        nulls = self.length < 0
        mask = None
        if nulls.any():
            mask = pa.py_buffer(np.packbits(~nulls, bitorder="little"))
        return pa.Array.from_buffers(
            pa.binary_view(), rows, [mask, pa.py_buffer(views), pa.py_buffer(self.data)]
        )

    def to_arrow(self) -> pa.Array:
        """Return an Arrow binary array."""
        return self.views().cast(pa.binary())


@dataclass(frozen=True, slots=True)
class BatchHeaders:
    """Columns with the headers of the record batches that the records belong to."""

    base_offset: Ints
    next_offset: Ints
    size_bytes: Ints
    attributes: Ints
    partition_leader_epoch: Ints
    producer_id: Ints
    producer_epoch: Ints
    base_sequence: Ints


# The columns of `RECORDS` that are fields of `BatchHeaders` with the same name.
_HEADER_COLUMNS = (
    *("partition_leader_epoch", "producer_id", "producer_epoch", "base_sequence", "base_offset"),
    "attributes",
)


class Damage(NamedTuple):
    """Log offsets `first` to `last` (inclusive) whose records cannot be read in this copy of the log.

    `what` describes the damage. `share_partitions` are the record keys of the lost records, without their
    type; empty if they are not known.  `check` is P2 if the log does not have these offsets; `since_ms` is
    then the timestamp of the next record.
    """

    state_partition: int
    first: int
    last: int
    what: str
    share_partitions: tuple[bytes, ...] = ()
    check: str = "P4"
    since_ms: int = NONE


def make_gap(state_partition: int, first: int, last: int, since_ms: int = NONE) -> Damage:
    """Return the damage of log offsets (inclusive) that a log does not have."""
    what = f"{last + 1 - first} log offsets are missing after {first - 1}"
    return Damage(state_partition, first, last, what, (), "P2", since_ms)


def add_gaps(damages: Iterable[Damage], gaps: Iterable[Damage]) -> list[Damage]:
    """Return damages and the gaps that are not inside one of them."""
    known = list(damages)
    outside = [
        gap for gap in gaps if not any(each.first <= gap.first and gap.last <= each.last for each in known)
    ]
    return known + outside


@dataclass(frozen=True, slots=True)
class Records:
    """Records of one state partition, in log order; `batch` maps each record to its index in `batches`.

    If a file ends in an incomplete write, `unread_bytes` is the number of bytes after the last valid batch.
    `damages` are the damaged log ranges before or after the records.
    """

    state_partition: int
    log_offset: Ints
    timestamp_ms: Ints
    keys: ByteSpans
    values: ByteSpans
    owner_epoch: Ints
    batch: Ints
    batches: BatchHeaders
    unread_bytes: int = 0
    damages: tuple[Damage, ...] = ()

    def __len__(self) -> int:
        return len(self.log_offset)

    def take(self, rows: Ints | Bools) -> "Records":
        """Return the selected records, with all batch headers."""
        return Records(
            self.state_partition,
            self.log_offset[rows],
            self.timestamp_ms[rows],
            self.keys.take(rows),
            self.values.take(rows),
            self.owner_epoch[rows],
            self.batch[rows],
            self.batches,
        )

    def select_offsets(self, start: int, end: int) -> "Records":
        """Return the records with log offsets from `start` to `end` (exclusive)."""
        if len(self) and self.log_offset[0] >= start and self.log_offset[-1] < end:
            return self
        return self.take((self.log_offset >= start) & (self.log_offset < end))

    def reaches(self, end: int) -> bool:
        """Return whether the log offset of the last record is at least `end - 1`."""
        return len(self) > 0 and int(self.log_offset[-1]) >= end - 1

    def data_records(self) -> "Records":
        """Return the records without those of control batches."""
        control = (self.batches.attributes & CONTROL) != 0
        return self.take(~control[self.batch]) if control.any() else self

    def to_arrow(self) -> pa.RecordBatch:
        """Return the records as rows of `RECORDS`."""
        columns = [
            pa.array(np.full(len(self), self.state_partition)),
            pa.array(self.log_offset),
            pa.array(self.timestamp_ms),
            self.keys.to_arrow(),
            self.values.to_arrow(),
            pa.array(self.owner_epoch),
            *(pa.array(getattr(self.batches, name)[self.batch]) for name in _HEADER_COLUMNS),
        ]
        typed = [column.cast(field.type) for column, field in zip(columns, RECORDS, strict=True)]
        return pa.record_batch(typed, schema=RECORDS)


def records_from_arrow(rows: pa.RecordBatch) -> list[Records]:
    """Convert rows of `RECORDS`; yield a `Records` for each sequence of rows of one state partition."""
    partitions = column_to_ints(rows.column("state_partition"))
    cuts = np.flatnonzero(np.diff(partitions)) + 1
    edges = [0, *cuts.tolist(), len(partitions)]
    return [
        _records_of_partition(rows.slice(begin, end - begin), int(partitions[begin]))
        for begin, end in pairwise(edges)
        if end > begin
    ]


def _records_of_partition(rows: pa.RecordBatch, state_partition: int) -> Records:
    log_offset = column_to_ints(rows.column("log_offset"))
    keys, values = make_spans(rows.column("key")), make_spans(rows.column("value"))
    base_offset = column_to_ints(rows.column("base_offset"))
    begins = np.diff(base_offset, prepend=base_offset[0] - 1) != 0
    first = np.flatnonzero(begins)
    size = np.maximum(keys.length, 0) + np.maximum(values.length, 0)
    return Records(
        state_partition,
        log_offset,
        column_to_ints(rows.column("timestamp_ms")),
        keys,
        values,
        column_to_ints(rows.column("owner_epoch")),
        np.cumsum(begins) - 1,
        BatchHeaders(
            next_offset=log_offset[np.append(first[1:], len(log_offset)) - 1] + 1,
            size_bytes=np.add.reduceat(size, first),
            **{name: column_to_ints(rows.column(name))[first] for name in _HEADER_COLUMNS},
        ),
    )


def column_to_ints(column: pa.Array) -> Ints:
    """Return an Arrow column of integers or booleans without nulls as an int64 array."""
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    found: NDArray[Any] = column.to_numpy(zero_copy_only=False)
    return found if found.dtype == np.int64 else found.astype(np.int64)


def make_spans(column: pa.Array) -> ByteSpans:
    """Convert an Arrow binary column to `ByteSpans`."""
    if column.type != pa.binary():
        column = column.cast(pa.binary())
    _, offsets_buffer, data_buffer = column.buffers()
    rows = len(column)
    if rows == 0:
        return ByteSpans(pad_bytes(), NO_INTS, NO_INTS)
    offsets = np.frombuffer(offsets_buffer, np.int32, rows + 1, column.offset * 4).astype(np.int64)
    begin, end = int(offsets[0]), int(offsets[-1])
    data = b"" if data_buffer is None else memoryview(data_buffer)[begin:end]
    length = np.diff(offsets)
    if column.null_count:
        length[~column.is_valid().to_numpy(zero_copy_only=False)] = -1
    return ByteSpans(pad_bytes(data), offsets[:-1] - begin, length)
