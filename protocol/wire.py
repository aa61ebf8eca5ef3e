"""The variable-length parts of Kafka's wire format: varints, lengths and tagged fields.

Fixed-size fields are not here: the generated codecs read and write whole runs of them with one
`struct.Struct`. Readers take ``(buf, at)`` and return ``(value, next position)``. They let IndexError
escape when the bytes end; whoever decodes a whole message turns `MALFORMED` into DecodeError. A slice
never raises when it is short, so a reader that slices checks the end itself, or leaves a position behind
the end for the caller's final check.
"""

import struct
from collections.abc import Iterable

from protocol.errors import DecodeError, EncodeError, TooManyElementsError

# What reading beyond the end, or text that is not UTF-8, raises in straight-line code.
MALFORMED = (struct.error, IndexError, UnicodeDecodeError)

# What a value out of range, or text with lone surrogates, raises in straight-line code.
UNENCODABLE = (struct.error, UnicodeEncodeError)

# The longest string that Kafka reads, in bytes; strings of the older layouts have no longer length.
STRING_BYTES_MAX = 0x7FFF

# The elements of a request that a decoder accepts if its caller sets no limit. An array element and a tagged
# field count 1; so do each 64 bytes of a long text and each 16 state batches.
ELEMENTS_MAX = 30_000
# The tagged fields of a header. Kafka defines none.
HEADER_ELEMENTS_MAX = 64

# The unsigned varints of one byte, by value: cheaper than a call where most values are small.
SHORT_UVARINTS = tuple(bytes([value]) for value in range(128))


def read_uvarint(buf: bytes, at: int) -> tuple[int, int]:
    """Read an unsigned varint of at most 32 bits. Forms longer than needed are accepted, as Kafka does."""
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
    """Read the length of a compact string, bytes or array that must not be null: length + 1, so never 0."""
    value, at = read_uvarint(buf, at)
    if value == 0:
        raise DecodeError(f"null before byte {at} where a value is required")
    return value, at


def read_bytes_length(buf: bytes, at: int) -> tuple[int, int]:
    """Read like `read_length`, but return the position of the length's last byte: the bytes are behind it."""
    value, at = read_length(buf, at)
    return value, at - 1


def read_string_length(buf: bytes, at: int) -> tuple[int, int]:
    """Read like `read_bytes_length`; DecodeError for a string that is longer than Kafka's are."""
    value, at = read_bytes_length(buf, at)
    _check_string(value, at)
    return value, at


def read_nullable_string_length(buf: bytes, at: int) -> tuple[int, int]:
    """Read length + 1 of a compact string, 0 if it is null; DecodeError if it is longer than Kafka's are."""
    value, at = read_uvarint(buf, at)
    _check_string(value, at)
    return value, at


def _check_string(value: int, at: int) -> None:
    if value > STRING_BYTES_MAX + 1:
        raise DecodeError(
            f"string of {value - 1} bytes at byte {at}: Kafka's have {STRING_BYTES_MAX} at most"
        )


def skip_tags(buf: bytes, at: int) -> int:
    """Return the position behind a tagged-field section, which may lie behind the end of ``buf``."""
    count, at = read_uvarint(buf, at)
    for _ in range(count):
        _, at = read_uvarint(buf, at)
        size, at = read_uvarint(buf, at)
        at += size
    return at


def skip_tags_within(buf: bytes, at: int, left: int) -> tuple[int, int]:
    """Skip a tagged-field section; return the position behind it and the elements left after it.

    Raises TooManyElementsError before any field is read if the section has more than ``left`` fields.
    """
    count, _ = read_uvarint(buf, at)
    left = spend(left, count)
    return skip_tags(buf, at), left


def spend(left: int, count: int) -> int:
    """Return ``left - count``; TooManyElementsError if that is negative."""
    if count > left:
        raise TooManyElementsError(f"{count} more elements, where {left} are left")
    return left - count


def tagged_field_end(buf: bytes, at: int, size: int) -> int:
    """Return where a tagged field of ``size`` bytes ends; DecodeError if ``buf`` ends before that."""
    end = at + size
    if end > len(buf):
        raise DecodeError(f"tagged field at byte {at} has {size} bytes, of which {len(buf) - at} are there")
    return end


def write_tags(tags: Iterable[tuple[int, bytes]]) -> bytes:
    """Write a tagged-field section from ``(tag, field bytes)`` pairs, in ascending order of their tags."""
    ordered = sorted(tags)
    pieces = [write_uvarint(len(ordered))]
    previous = -1
    for tag, field in ordered:
        if tag == previous:
            raise EncodeError(f"tag {tag} is there twice")
        previous = tag
        pieces += (write_uvarint(tag), write_uvarint(len(field)), field)
    return b"".join(pieces)
