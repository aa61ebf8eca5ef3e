"""Parse record batches into columns with NumPy; equivalent to `protocol.record_batch`.

A record's position depends on the length of the record before it, so a loop finds the positions of records.
All other fields are read from all records at once. Invalid batches are passed to `decode_batches`, whose
exception describes the error.
"""

from array import array
from collections.abc import Iterator
from dataclasses import replace
from struct import Struct
from typing import NamedTuple

import numpy as np
from crc32c import crc32c

from coordinator.fastpath import compiled
from coordinator.log.claims import OWNER_EPOCH_HEADER, read_owner_epoch
from coordinator.recovery.records import (
    NO_INTS,
    BatchHeaders,
    Bytes,
    ByteSpans,
    Damage,
    Ints,
    Records,
    pad_bytes,
    unaligned_view,
)
from coordinator.recovery.schema import NONE
from protocol.errors import DecodeError
from protocol.record_batch import (
    HEADER_BYTES,
    MAGIC,
    batch_size_at,
    decode_batches,
    decompress,
    next_offset_at,
    read_varint,
)

_CODEC = 0x07
_LOG_APPEND_TIME = 0x08
_CRC_AT, _COVERED_AT, _MAGIC_AT = 17, 21, 16
_CRC = Struct(">I")

# A record with only the header of the owner epoch: count 1, name length, name, value length; numbers are
# zig-zag varints.
_OWNER = bytes([2, 2 * len(OWNER_EPOCH_HEADER)]) + OWNER_EPOCH_HEADER.encode() + bytes([8])
_OWNER_HEAD = int.from_bytes(_OWNER[:8], "little", signed=True)
_OWNER_REST = int.from_bytes(_OWNER[-8:], "little", signed=True)
_OWNER_REST_AT = len(_OWNER) - 8

_VARINT_BYTES_MAX = 10


class ParseResult(NamedTuple):
    """The records of a buffer of record batches.

    `used_bytes` is the end position of the last valid batch; `found` describes the error after it, if any.
    """

    records: Records
    used_bytes: int
    found: str | None


def parse(state_partition: int, buffer: bytes | memoryview, *, first_byte: int = 0) -> ParseResult:
    """Parse the complete record batches at the beginning of a buffer.

    The function stops at a batch that is truncated (`found` is None) or invalid (`found` is the error).
    Positions in the error count from `first_byte`. Raises DecodeError if a batch has a valid CRC, but invalid
    records.
    """
    positions, sizes, found = find_batches(buffer, first_byte)
    used_bytes = positions[-1] + sizes[-1] if positions else 0
    if not positions:
        return ParseResult(make_empty_records(state_partition), 0, found)
    data = pad_bytes(memoryview(buffer)[:used_bytes])
    at = np.array(positions, np.int64)
    size = np.array(sizes, np.int64)
    head = _read_headers_of_batches(data, at, size)
    count = unaligned_view(data, ">i4")[at + 57].astype(np.int64)
    begin, end = at + HEADER_BYTES, at + size
    compressed = np.flatnonzero(head.attributes & _CODEC)
    if len(compressed):
        data, begin, end = _decompress_batches(data, head, begin, end, compressed, first_byte)
    try:
        records = _read_records(state_partition, data, at, begin, end, count, head)
    except (DecodeError, IndexError, ValueError):
        records = None
    if records is None:
        for _ in decode_batches(bytes(memoryview(buffer)[:used_bytes])):
            pass
        raise DecodeError(f"records from byte {first_byte} on do not parse")
    return ParseResult(records, used_bytes, found)


def parse_readable(state_partition: int, buffer: bytes | memoryview, *, first_byte: int = 0) -> ParseResult:
    """Parse the record batches at the beginning of a buffer, up to the first batch with any error."""
    try:
        return parse(state_partition, buffer, first_byte=first_byte)
    except DecodeError as error:
        found = str(error)
    view, used_bytes = memoryview(buffer), 0
    for position, size in zip(*find_batches(buffer, first_byte)[:2], strict=True):
        try:
            parse(state_partition, view[position : position + size], first_byte=first_byte + position)
        except DecodeError as error:
            found = str(error)
            break
        used_bytes = position + size
    return parse(state_partition, view[:used_bytes], first_byte=first_byte)._replace(found=found)


def parse_around_damage(
    state_partition: int, data: bytes, start: int, end: int, name: str
) -> Iterator[Records]:
    """Parse complete record batches; yield the records with log offsets from `start` to `end` (exclusive).

    Report the log offsets of a batch that cannot be read as damage, and continue with the next batch. If the
    size of a batch is invalid, or less than a batch header remains, the rest of `data` is skipped.
    """
    at = 0
    while at < len(data):
        found = parse_readable(state_partition, memoryview(data)[at:], first_byte=at)
        at += found.used_bytes
        damages: tuple[Damage, ...] = ()
        if at < len(data):
            if len(data) - at < HEADER_BYTES:
                first, last = start, end - 1
            else:
                first, last = int.from_bytes(data[at : at + 8]), next_offset_at(data, at) - 1
            if start <= last and first < end:
                damages = (
                    Damage(state_partition, first, last, f"{name}: {found.found or 'a batch is cut off'}"),
                )
            try:
                at += batch_size_at(data, at) or len(data)
            except DecodeError:
                at = len(data)
        yield replace(found.records.select_offsets(start, end), damages=damages)


def find_batches(buffer: bytes | memoryview, first_byte: int) -> tuple[list[int], list[int], str | None]:
    """Return positions and sizes of the valid record batches at the beginning, and the error after them."""
    view = memoryview(buffer)
    positions: list[int] = []
    sizes: list[int] = []
    at, end = 0, len(view)
    found = None
    while True:
        try:
            size_bytes = batch_size_at(view, at)  # type: ignore[arg-type]
        except DecodeError:
            found = f"there is no batch at byte {first_byte + at}"
            break
        if size_bytes is None or at + size_bytes > end:
            break
        if view[at + _MAGIC_AT] != MAGIC:
            found = f"the batch at byte {first_byte + at} has magic {view[at + _MAGIC_AT]}; only 2 is read"
            break
        if crc32c(view[at + _COVERED_AT : at + size_bytes]) != _CRC.unpack_from(view, at + _CRC_AT)[0]:
            found = f"the batch at byte {first_byte + at} fails its CRC"
            break
        positions.append(at)
        sizes.append(size_bytes)
        at += size_bytes
    return positions, sizes, found


def _read_headers_of_batches(data: Bytes, at: Ints, size: Ints) -> BatchHeaders:
    i2, i4, i8 = (unaligned_view(data, dtype) for dtype in (">i2", ">i4", ">i8"))
    base_offset = i8[at].astype(np.int64)
    return BatchHeaders(
        base_offset=base_offset,
        next_offset=base_offset + i4[at + 23] + 1,
        size_bytes=size,
        attributes=i2[at + 21].astype(np.int64),
        partition_leader_epoch=i4[at + 12].astype(np.int64),
        producer_id=i8[at + 43].astype(np.int64),
        producer_epoch=i2[at + 51].astype(np.int64),
        base_sequence=i4[at + 53].astype(np.int64),
    )


def _decompress_batches(
    data: Bytes, head: BatchHeaders, begin: Ints, end: Ints, compressed: Ints, first_byte: int
) -> tuple[Bytes, Ints, Ints]:
    """Append the decompressed records of compressed record batches to the data. Raises DecodeError."""
    parts: list[bytes | memoryview | Bytes] = [data]
    begin, end = begin.copy(), end.copy()
    behind = len(data)
    for row in compressed.tolist():
        position = int(begin[row]) - HEADER_BYTES
        part = decompress(
            int(head.attributes[row]) & _CODEC,
            data[begin[row] : end[row]].tobytes(),
            first_byte + position,
        )
        parts.append(part)
        begin[row], end[row] = behind, behind + len(part)
        behind += len(part)
    return pad_bytes(*parts), begin, end


def _read_records(
    state_partition: int, data: Bytes, at: Ints, begin: Ints, end: Ints, count: Ints, head: BatchHeaders
) -> Records | None:
    """Read all records at once; return None if any of them has an unusual layout. May raise IndexError."""
    if ((count < 0) | (count > end - begin)).any():
        return None
    found = _record_starts(data.tobytes(), begin.tolist(), end.tolist(), count.tolist())
    if found is None:
        return None
    starts = np.frombuffer(found, np.int64)
    batch = np.repeat(np.arange(len(count)), count)
    size, cursor = _read_varints(data, starts)
    record_end = cursor + size
    cursor = cursor + 1  # attributes, always 0
    timestamp_delta, cursor = _read_varints(data, cursor)
    offset_delta, cursor = _read_varints(data, cursor)
    key_length, key_at = _read_varints(data, cursor)
    value_length, value_at = _read_varints(data, key_at + np.maximum(key_length, 0))
    header_at = value_at + np.maximum(value_length, 0)
    sound = (size >= 0) & (key_length >= NONE) & (value_length >= NONE) & (header_at < record_end)
    if not sound.all():
        return None
    owner_epoch, irregular = _read_owner_epochs(data, header_at, record_end)
    if len(irregular):
        _read_headers(data, at, head, batch, irregular, owner_epoch)
    base_ms, max_ms = (unaligned_view(data, ">i8")[at + place].astype(np.int64) for place in (27, 35))
    timestamp_ms = base_ms[batch] + timestamp_delta
    appended = (head.attributes & _LOG_APPEND_TIME) != 0
    if appended.any():
        timestamp_ms = np.where(appended[batch], max_ms[batch], timestamp_ms)
    return Records(
        state_partition,
        head.base_offset[batch] + offset_delta,
        timestamp_ms,
        ByteSpans(data, key_at, key_length),
        ByteSpans(data, value_at, value_length),
        owner_epoch,
        batch,
        head,
    )


def find_record_starts(data: bytes, begins: list[int], ends: list[int], counts: list[int]) -> bytes | None:
    """Return the positions of records as native 64-bit integers.

    `counts[i]` records are between `begins[i]` and `ends[i]`. Returns None if the records do not fill this
    space exactly. The fast path has a compiled version, because this loop took most of the time of parsing.
    """
    starts = array("q")
    for at, end, count in zip(begins, ends, counts, strict=True):
        for _ in range(count):
            starts.append(at)
            size, at = read_varint(data, at)
            at += size
            if size < 0 or at > end:
                return None
        if at != end:
            return None
    return starts.tobytes()


_record_starts = find_record_starts if compiled is None else compiled.record_starts


def _read_varints(data: Bytes, at: Ints) -> tuple[Ints, Ints]:
    """Read a zig-zag varint at each position; return the values and the positions after them."""
    byte = data[at]
    value = (byte & 0x7F).astype(np.int64)
    behind = at + 1
    more = np.flatnonzero(byte & 0x80)
    shift = 7
    while len(more):
        if shift >= 7 * _VARINT_BYTES_MAX:
            raise ValueError("a varint is longer than ten bytes")
        byte = data[behind[more]]
        value[more] |= (byte & 0x7F).astype(np.int64) << shift
        behind[more] += 1
        more = more[(byte & 0x80) != 0]
        shift += 7
    return ((value >> 1) & 0x7FFF_FFFF_FFFF_FFFF) ^ -(value & 1), behind


def _read_owner_epochs(data: Bytes, at: Ints, end: Ints) -> tuple[Ints, Ints]:
    """Read the owner epochs of records with at most that header; also return the rows with other headers."""
    owner_epoch = np.full(len(at), NONE, np.int64)
    bare = (data[at] == 0) & (at + 1 == end)
    rows = np.flatnonzero(~bare)
    if not len(rows):
        return owner_epoch, rows
    at, end = at[rows], end[rows]
    words = unaligned_view(data, "<i8")
    usual = (
        (at + len(_OWNER) + 4 == end)
        & (words[at] == _OWNER_HEAD)
        & (words[at + _OWNER_REST_AT] == _OWNER_REST)
    )
    owner_epoch[rows[usual]] = unaligned_view(data, ">i4")[at[usual] + len(_OWNER)]
    return owner_epoch, rows[~usual]


def _read_headers(
    data: Bytes, at: Ints, head: BatchHeaders, batch: Ints, irregular: Ints, owner_epoch: Ints
) -> None:
    """Decode record batches one by one to read the owner epochs of records with other headers.

    Raises DecodeError.
    """
    for row in np.unique(batch[irregular]).tolist():
        raw = data[at[row] : at[row] + head.size_bytes[row]].tobytes()
        (decoded,) = decode_batches(raw)
        found = [read_owner_epoch(record) for record in decoded.records]
        owner_epoch[batch == row] = [NONE if epoch is None else epoch for epoch in found]


def make_empty_records(state_partition: int) -> Records:
    """Return an empty `Records` of a state partition."""
    spans = ByteSpans(pad_bytes(), NO_INTS, NO_INTS)
    batches = BatchHeaders(*(NO_INTS,) * 8)
    return Records(state_partition, NO_INTS, NO_INTS, spans, spans, NO_INTS, NO_INTS, batches)
