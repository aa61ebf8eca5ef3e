"""State batches and their packed wire form.

Kafka encodes an array of state batches as a count, and each batch as ``>qqbh`` and a tagged-field section.
Kafka defines no tags there, so the section is a single zero byte. An array without tags is therefore a
sequence of 20-byte entries that can be kept, compared and copied unchanged. In this project, *packed* batches
are those bytes without the count.
"""

from collections.abc import Iterable, Mapping
from struct import Struct
from typing import NamedTuple

from protocol.errors import DecodeError
from protocol.wire import read_length, skip_tags, spend_elements

BATCH_BYTES = 20

# The tag bytes of untagged batches, indexed by the count + 1 that precedes them on the wire. The entry of a
# null array is None, which equals no bytes.
NO_TAGS: tuple[bytes | None, ...] = (None, *(bytes(count) for count in range(127)))

# Number of untagged batches that count as one array element, because they are copied without decoding.
BATCHES_PER_ELEMENT = 16

_BATCH = Struct(">qqbhx")
_FIELDS_BYTES = BATCH_BYTES - 1


class StateBatch(NamedTuple):
    """Offsets ``first_offset..last_offset``, both inclusive, in one delivery state."""

    first_offset: int
    last_offset: int
    delivery_state: int
    delivery_count: int


class TaggedBatches(bytes):
    """Packed batches of which some carry unknown tagged fields.

    The bytes are the canonical 20-byte entries, so code that ignores tags can use them as packed batches.
    A slice or a copy is plain bytes. ``tags`` maps the index of a batch to its tagged-field section as read.
    A record is therefore written back with identical bytes.
    """

    tags: dict[int, bytes]

    def __new__(cls, packed: bytes, tags: Mapping[int, bytes]) -> "TaggedBatches":
        batches = super().__new__(cls, packed)
        batches.tags = dict(tags)
        return batches

    def __getnewargs__(self) -> tuple[bytes, dict[int, bytes]]:  # type: ignore[override]
        return bytes(self), self.tags

    def __eq__(self, other: object) -> bool:
        """Equal only to tagged batches with the same tags."""
        return isinstance(other, TaggedBatches) and bytes(self) == bytes(other) and self.tags == other.tags

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash(bytes(self))


def pack(batches: Iterable[StateBatch]) -> bytes:
    """Pack batches into 20 bytes each, without a count."""
    return b"".join([_BATCH.pack(*batch) for batch in batches])


def unpack(packed: bytes) -> list[StateBatch]:
    """Unpack packed batches; raise DecodeError if the length is not a multiple of 20 bytes."""
    if len(packed) % BATCH_BYTES:
        raise DecodeError(f"{len(packed)} bytes are not a whole number of {BATCH_BYTES}-byte state batches")
    return list(map(StateBatch._make, _BATCH.iter_unpack(packed)))


def read_tagged(buf: bytes, at: int) -> tuple[bytes, int]:
    """Read an array of batches with its count: the slow path of `protocol.field_codecs`.

    Returns the batches and the position after them; batches without tags are plain bytes. Raises DecodeError
    for a null array, which is never allowed, and for more batches than ``buf`` can hold.
    """
    count, at = read_length(buf, at)
    count -= 1
    if count > (len(buf) - at) // BATCH_BYTES:
        raise DecodeError(f"{count} state batches cannot be in the {len(buf) - at} bytes from byte {at}")
    end = at + count * BATCH_BYTES
    if buf[at + _FIELDS_BYTES : end : BATCH_BYTES].count(0) == count:
        return buf[at:end], end
    pieces = []
    tags = {}
    for index in range(count):
        pieces.append(buf[at : at + _FIELDS_BYTES])
        at += _FIELDS_BYTES
        end = skip_tags(buf, at)
        if end > len(buf):
            raise DecodeError(f"state batch {index} ends after the end of the buffer")
        if buf[at:end] != b"\0":
            tags[index] = buf[at:end]
        at = end
    packed = b"".join([piece + b"\0" for piece in pieces])
    return (TaggedBatches(packed, tags) if tags else packed), at


def read_untagged(buf: bytes, at: int) -> tuple[bytes, int]:
    """Read an array of batches like `read_tagged`, and drop the tagged fields."""
    packed, at = read_tagged(buf, at)
    return bytes(packed), at


def read_untagged_within(buf: bytes, at: int, left: int) -> tuple[bytes, int, int]:
    """Read an array of batches like `read_untagged`; also return the remaining element budget.

    16 batches without tagged fields cost 1 element; if any batch has tagged fields, each batch costs 1.
    Raises TooManyElementsError before memory is allocated.
    """
    count, first = read_length(buf, at)
    count -= 1
    end = first + count * BATCH_BYTES
    is_packed = end <= len(buf) and buf[first + _FIELDS_BYTES : end : BATCH_BYTES].count(0) == count
    left = spend_elements(left, count // BATCHES_PER_ELEMENT if is_packed else count)
    packed, at = read_untagged(buf, at)
    return packed, at, left


def write_tagged(packed: bytes) -> bytes:
    """Return the wire form of packed batches, tagged fields included, without the count."""
    if not isinstance(packed, TaggedBatches):
        return packed
    pieces: list[bytes] = []
    for start in range(0, len(packed), BATCH_BYTES):
        index = start // BATCH_BYTES
        pieces += (packed[start : start + _FIELDS_BYTES], packed.tags.get(index, b"\0"))
    return b"".join(pieces)
