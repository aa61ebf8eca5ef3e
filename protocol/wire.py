"""Variable-length integers of Kafka's wire format, and limits of decoding.

A reader takes ``(buf, at)`` and returns ``(value, next position)``. At the end of the bytes a reader raises
IndexError; the decoder of a whole message converts `MALFORMED` to DecodeError.
"""

import struct

from protocol.errors import DecodeError, EncodeError

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
    value = 0
    for shift in (0, 7, 14, 21, 28):
        byte = buf[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80 and value <= 0xFFFF_FFFF:
            return value, at
    raise DecodeError(f"varint before byte {at} is longer than 32 bits")


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
