"""Encode and decode Kafka record batches of magic 2.

The batch length excludes the base offset and the length field. The CRC-32C covers the attributes and all
later bytes. Batches are written uncompressed and with CreateTime, and read with any compression.
"""

from collections.abc import Iterator, Sequence
from functools import lru_cache
from struct import Struct
from struct import error as StructError
from typing import NamedTuple

import cramjam
from crc32c import crc32c

from protocol.errors import DecodeError
from protocol.wire import write_varint

HEADER_BYTES = 61
MAGIC = 2
# Upper bound of a record's bytes in a batch without key and value, with one short header.
RECORD_BYTES_IN_BATCH = 64

_CODEC = 0x07
_LOG_APPEND_TIME = 0x08
_CONTROL = 0x20

# Fields outside the CRC: base offset, length, leader epoch, magic, and the CRC itself.
_PREFIX = Struct(">qiibI")
# Fields before the records that the CRC covers: attributes, last offset delta, base and max timestamp,
# producer id and epoch, base sequence, record count.
_COVERED = Struct(">hiqqqhii")
_HEADER = Struct(">qiibIhiqqqhii")
_LENGTH = Struct(">i")
_OFFSET_DELTA_AT = Struct(">i")
_BASE_OFFSET = Struct(">q")

_COVERED_AT = _PREFIX.size
_LENGTH_END = 12
_LAST_OFFSET_DELTA_AT = _COVERED_AT + 2

_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER_BYTES = 16


class LogRecord(NamedTuple):
    """One record and its log offset; a null key or value is None."""

    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


class RecordBatch(NamedTuple):
    """One batch; ``records`` may have gaps in their offsets if Kafka compacted the log.

    If `is_control`, the records are transaction markers, not data.
    """

    base_offset: int
    last_offset: int
    leader_epoch: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    is_control: bool
    records: list[LogRecord]


# Lengths and offset deltas are usually small; a table lookup takes a tenth of the time of `write_varint`.
_SMALL = 16384
_ZIGZAGS = tuple(write_varint(value) for value in range(_SMALL))
_NULL_LENGTH = write_varint(-1)


def _encode_varint(value: int) -> bytes:
    """Encode a length or delta of at least 0."""
    return _ZIGZAGS[value] if value < _SMALL else write_varint(value)


def encode_batch(
    base_offset: int,
    timestamp_ms: int,
    records: Sequence[tuple[bytes, bytes | None]],
    headers: tuple[tuple[str, bytes], ...] = (),
    leader_epoch: int = 0,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = 0,
) -> bytes:
    """Encode (key, value) records as one batch with consecutive offsets, one timestamp and equal headers.

    A broker uses producer id, epoch and sequence to detect a batch that is sent twice.
    Raises ValueError if there are no records.
    """
    count = len(records)
    if not count:
        raise ValueError("a batch needs at least one record")
    tail = encode_headers(headers)
    fixed_bytes = 2 + len(tail)  # attributes byte and timestamp delta 0
    zigzags = _ZIGZAGS
    parts = [
        _COVERED.pack(
            0, count - 1, timestamp_ms, timestamp_ms, producer_id, producer_epoch, base_sequence, count
        )
    ]
    offset_delta = b"\0"
    for index, (key, value) in enumerate(records):
        key_bytes = len(key)
        key_length = zigzags[key_bytes] if key_bytes < _SMALL else write_varint(key_bytes)
        if value is None:
            value, value_bytes, value_length = b"", 0, _NULL_LENGTH
        else:
            value_bytes = len(value)
            value_length = zigzags[value_bytes] if value_bytes < _SMALL else write_varint(value_bytes)
        if index:
            offset_delta = zigzags[index] if index < _SMALL else write_varint(index)
        size_bytes = (
            fixed_bytes + len(offset_delta) + len(key_length) + key_bytes + len(value_length) + value_bytes
        )
        size = zigzags[size_bytes] if size_bytes < _SMALL else write_varint(size_bytes)
        parts += (size, b"\0\0", offset_delta, key_length, key, value_length, value, tail)
    covered = b"".join(parts)
    return _PREFIX.pack(base_offset, len(covered) + 9, leader_epoch, MAGIC, crc32c(covered)) + covered


@lru_cache(maxsize=1024)
def encode_headers(headers: tuple[tuple[str, bytes], ...]) -> bytes:
    """Encode the number of headers and the headers; an owner's records all have equal headers."""
    parts = [_encode_varint(len(headers))]
    for name, value in headers:
        encoded = name.encode()
        parts += (_encode_varint(len(encoded)), encoded, _encode_varint(len(value)), value)
    return b"".join(parts)


def batch_size_at(buf: bytes, offset: int) -> int | None:
    """Return the size in bytes of the batch at an offset; None if ``buf`` ends inside its length field.

    The batch may be incomplete, because a fetch response may end inside a batch.
    """
    if len(buf) - offset < _LENGTH_END:
        return None
    length: int = _LENGTH.unpack_from(buf, offset + 8)[0]
    if length < HEADER_BYTES - _LENGTH_END:
        raise DecodeError(f"batch length {length} at byte {offset} is shorter than a batch header")
    return _LENGTH_END + length


def next_offset_at(buf: bytes, offset: int) -> int:
    """Return the log offset after the batch at an offset; only the batch header is read."""
    last_offset_delta: int = _OFFSET_DELTA_AT.unpack_from(buf, offset + _LAST_OFFSET_DELTA_AT)[0]
    return int(_BASE_OFFSET.unpack_from(buf, offset)[0]) + last_offset_delta + 1


def decode_batches(buf: bytes, offset: int = 0) -> Iterator[RecordBatch]:
    """Decode the batches that fill ``buf`` from an offset to its end.

    Raises DecodeError at the first batch that is truncated, has another magic or an unknown compression,
    fails its CRC, or is not filled exactly by its records.
    """
    end = len(buf)
    while offset < end:
        size_bytes = batch_size_at(buf, offset)
        if size_bytes is None or offset + size_bytes > end:
            raise DecodeError(f"the batch at byte {offset} is cut off")
        yield _decode_batch(buf, offset, size_bytes)
        offset += size_bytes


def _decode_batch(buf: bytes, offset: int, size_bytes: int) -> RecordBatch:
    (
        base_offset,
        _,
        leader_epoch,
        magic,
        crc,
        attributes,
        last_offset_delta,
        timestamp_ms,
        max_timestamp_ms,
        producer_id,
        producer_epoch,
        base_sequence,
        count,
    ) = _HEADER.unpack_from(buf, offset)
    if magic != MAGIC:
        raise DecodeError(f"the batch at byte {offset} has magic {magic}; only 2 is read")
    end = offset + size_bytes
    actual_crc = crc32c(buf[offset + _COVERED_AT : end])
    if actual_crc != crc:
        raise DecodeError(f"the batch at byte {offset} has CRC {crc}, but its bytes have {actual_crc}")
    if last_offset_delta < 0 or count < 0:
        raise DecodeError(f"the batch at byte {offset} has a negative count")
    if attributes & _CODEC:
        data = decompress(attributes & _CODEC, buf[offset + HEADER_BYTES : end], offset)
        start, end = 0, len(data)
    else:
        data, start = buf, offset + HEADER_BYTES
    if count > end - start:
        raise DecodeError(f"the batch at byte {offset} has {count} records in {end - start} bytes")
    fixed_ms = max_timestamp_ms if attributes & _LOG_APPEND_TIME else None
    try:
        records = _decode_records(data, start, end, count, base_offset, timestamp_ms, fixed_ms)
    except (IndexError, UnicodeDecodeError) as error:
        raise DecodeError(f"a record in the batch at byte {offset} does not parse: {error}") from error
    return RecordBatch(
        base_offset,
        base_offset + last_offset_delta,
        leader_epoch,
        producer_id,
        producer_epoch,
        base_sequence,
        bool(attributes & _CONTROL),
        records,
    )


def _decode_records(
    data: bytes, at: int, end: int, count: int, base_offset: int, base_ms: int, fixed_ms: int | None
) -> list[LogRecord]:
    """Decode exactly ``count`` records that fill ``data[at:end]``.

    A short slice does not raise, so the end of each record and of the batch is compared with its length.
    Single-byte varints are read inline, and ``tuple.__new__`` avoids a call of the class: this loop dominates
    the time to load a shard.
    """
    records: list[LogRecord] = []
    new_tuple = tuple.__new__
    for _ in range(count):
        size_bytes, at = read_varint(data, at)
        record_end = at + size_bytes
        if size_bytes < 0 or record_end > end:
            raise DecodeError(f"a record of {size_bytes} bytes extends beyond its batch")
        at += 1
        timestamp_ms = base_ms
        if data[at]:
            timestamp_delta, at = read_varint(data, at)
            timestamp_ms += timestamp_delta
        else:
            at += 1
        byte = data[at]
        if byte < 0x80:
            log_offset = base_offset + ((byte >> 1) ^ -(byte & 1))
            at += 1
        else:
            offset_delta, at = read_varint(data, at)
            log_offset = base_offset + offset_delta
        byte = data[at]
        key: bytes | None
        if byte < 0x80 and not byte & 1:
            key_at = at + 1
            at = key_at + (byte >> 1)
            key = data[key_at:at]
        else:
            key, at = _read_bytes(data, at)
        value, at = _read_bytes(data, at)
        headers: tuple[tuple[str, bytes | None], ...] = ()
        if data[at]:
            headers, at = _read_headers(data, at, record_end)
        else:
            at += 1
        if at != record_end:
            raise DecodeError(f"a record ends {at - record_end:+d} bytes from where its length says")
        if fixed_ms is not None:
            timestamp_ms = fixed_ms
        records.append(new_tuple(LogRecord, (log_offset, timestamp_ms, key, value, headers)))
    if at != end:
        raise DecodeError(f"{end - at} bytes follow the last record")
    return records


def read_varint(data: bytes, at: int) -> tuple[int, int]:
    """Read a zig-zag varint of at most ten bytes; return the value and the position after it."""
    byte = data[at]
    if byte < 0x80:
        return (byte >> 1) ^ -(byte & 1), at + 1
    following = data[at + 1]
    if following < 0x80:
        value = byte & 0x7F | following << 7
        return (value >> 1) ^ -(value & 1), at + 2
    value = byte & 0x7F
    shift = 7
    while True:
        at += 1
        byte = data[at]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), at + 1
        shift += 7
        if shift > 63:
            raise DecodeError("a varint is longer than ten bytes")


def _read_bytes(data: bytes, at: int) -> tuple[bytes | None, int]:
    """Read a length and that many bytes; length -1 means null."""
    length, at = read_varint(data, at)
    if length < 0:
        if length != -1:
            raise DecodeError(f"a field has length {length}")
        return None, at
    return data[at : at + length], at + length


def _read_headers(data: bytes, at: int, end: int) -> tuple[tuple[tuple[str, bytes | None], ...], int]:
    count, at = read_varint(data, at)
    if not 0 <= count <= end - at:
        raise DecodeError(f"a record claims {count} headers")
    headers: list[tuple[str, bytes | None]] = []
    for _ in range(count):
        name, at = _read_bytes(data, at)
        value, at = _read_bytes(data, at)
        if name is None:
            raise DecodeError("a record header has no name")
        headers.append((name.decode(), value))
    return tuple(headers), at


def decompress(codec: int, data: bytes, offset: int) -> bytes:
    """Decompress the records of the batch at an offset; ``codec`` is Kafka's compression number.

    Raises DecodeError.
    """
    try:
        match codec:
            case 1:
                return bytes(cramjam.gzip.decompress(data))
            case 2:
                return _decompress_snappy(data)
            case 3:
                return bytes(cramjam.lz4.decompress(data))
            case 4:
                return bytes(cramjam.zstd.decompress(data))
    except (cramjam.DecompressionError, StructError) as error:
        raise DecodeError(f"the batch at byte {offset} does not decompress: {error}") from error
    raise DecodeError(f"the batch at byte {offset} has unknown compression {codec}")


def _decompress_snappy(data: bytes) -> bytes:
    """Decompress snappy, either in the xerial framing of Java clients or as one raw block."""
    if not data.startswith(_XERIAL_MAGIC):
        return bytes(cramjam.snappy.decompress_raw(data))
    at = _XERIAL_HEADER_BYTES
    blocks = []
    while at < len(data):
        length = _LENGTH.unpack_from(data, at)[0]
        at += _LENGTH.size
        if length < 0 or at + length > len(data):
            raise DecodeError(f"a snappy block of {length} bytes extends beyond its batch")
        blocks.append(bytes(cramjam.snappy.decompress_raw(data[at : at + length])))
        at += length
    return b"".join(blocks)
