"""Variable-length parts of Kafka's wire format: varints, lengths and tagged fields.

Fixed-size fields are not here: `protocol.field_codecs` reads and writes sequences of them with one
`struct.Struct`. Readers take ``(buf, at)`` and return ``(value, next position)``. At the end of the bytes
they raise IndexError; the decoder of a whole message converts `MALFORMED` to DecodeError. A short slice
does not raise. A reader that slices therefore checks the end, or returns a position beyond the end, which
the caller's final check detects.
"""

import struct
from collections.abc import Iterable

from protocol.errors import DecodeError, EncodeError, TooManyElementsError

# Exceptions that inline decoding raises for truncated bytes or invalid UTF-8.
MALFORMED = (struct.error, IndexError, UnicodeDecodeError)

# Exceptions that inline encoding raises for a value out of range or text with lone surrogates.
UNENCODABLE = (struct.error, UnicodeEncodeError)

# Maximum length in bytes of a string that Kafka reads; non-compact strings have an int16 length.
STRING_BYTES_MAX = 0x7FFF

# Default limit of the elements of a request. An array element and a tagged field count 1; so do each
# 64 bytes of a long text and each 16 state batches.
ELEMENTS_MAX = 30_000
# Maximum number of tagged fields in a request header. Kafka itself defines no tagged header fields.
HEADER_ELEMENTS_MAX = 64

# Unsigned varints of one byte, by value: a lookup is cheaper than a call, and most values are small.
SHORT_UVARINTS = tuple(bytes([value]) for value in range(128))


def read_uvarint(buf: bytes, at: int) -> tuple[int, int]:
    """Read an unsigned varint of at most 32 bits. Like Kafka, accept encodings that are not the shortest."""
    byte = buf[at]
    at += 1
    value = byte & 0x7F
    shift = 7
    while byte & 0x80:
        byte = buf[at]
        at += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if shift > 35 or value > 0xFFFF_FFFF:
            raise DecodeError(f"varint before byte {at} is longer than 32 bits")
    return value, at


def write_uvarint(value: int) -> bytes:
    """Write an unsigned varint of at most 32 bits in its shortest form."""
    if not 0 <= value <= 0xFFFF_FFFF:
        raise EncodeError(f"{value} is not an unsigned 32-bit number")
    written = bytearray()
    while value > 0x7F:
        written.append(value & 0x7F | 0x80)
        value >>= 7
    written.append(value)
    return bytes(written)


def read_varint(buf: bytes, at: int) -> tuple[int, int]:
    """Read a signed (zig-zag) varint of at most 64 bits, as record batches use."""
    byte = buf[at]
    at += 1
    value = byte & 0x7F
    shift = 7
    while byte & 0x80:
        byte = buf[at]
        at += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if shift > 70 or value > 0xFFFF_FFFF_FFFF_FFFF:
            raise DecodeError(f"varint before byte {at} is longer than 64 bits")
    return (value >> 1) ^ -(value & 1), at


def write_varint(value: int) -> bytes:
    """Write a signed (zig-zag) varint of at most 64 bits in its shortest form."""
    if not -(1 << 63) <= value < 1 << 63:
        raise EncodeError(f"{value} is not a signed 64-bit number")
    value = (value << 1) ^ (value >> 63)
    written = bytearray()
    while value > 0x7F:
        written.append(value & 0x7F | 0x80)
        value >>= 7
    written.append(value)
    return bytes(written)


def read_length(buf: bytes, at: int) -> tuple[int, int]:
    """Read a non-null compact length (string, bytes or array); return length + 1, which is never 0."""
    value, at = read_uvarint(buf, at)
    if value == 0:
        raise DecodeError(f"null before byte {at} where a value is required")
    return value, at


def skip_tags(buf: bytes, at: int) -> int:
    """Return the position after a tagged-field section; it may be beyond the end of ``buf``."""
    count, at = read_uvarint(buf, at)
    for _ in range(count):
        _, at = read_uvarint(buf, at)
        size, at = read_uvarint(buf, at)
        at += size
    return at


def skip_tags_within(buf: bytes, at: int, left: int) -> tuple[int, int]:
    """Skip a tagged-field section; return the position after it and the remaining element budget.

    Raises TooManyElementsError before reading any field if the section has more than ``left`` fields.
    """
    count, _ = read_uvarint(buf, at)
    left = spend_elements(left, count)
    return skip_tags(buf, at), left


def spend_elements(left: int, count: int) -> int:
    """Return ``left - count``; raise TooManyElementsError if the result is negative."""
    if count > left:
        raise TooManyElementsError(f"{count} more elements, where {left} are left")
    return left - count


def write_tags(tags: Iterable[tuple[int, bytes]]) -> bytes:
    """Encode ``(tag, field bytes)`` pairs as a tagged-field section, in ascending order of tags."""
    ordered = sorted(tags)
    pieces = [write_uvarint(len(ordered))]
    previous = -1
    for tag, field in ordered:
        if tag == previous:
            raise EncodeError(f"tag {tag} occurs twice")
        previous = tag
        pieces += (write_uvarint(tag), write_uvarint(len(field)), field)
    return b"".join(pieces)
