"""State batches and their packed wire form.

Kafka sends an array of state batches as a count and then, for each batch, ``>qqbh`` and a tagged-field
section, which is a single zero byte because Kafka defines no tags there. So an array without tags is a run
of 20-byte pieces that can be kept, compared and copied as it is. All of this project does that: *packed*
batches are those bytes, without the count.
"""

from collections.abc import Iterable, Mapping
from struct import Struct
from typing import NamedTuple

from protocol.errors import DecodeError
from protocol.wire import read_length, skip_tags, spend

BATCH_BYTES = 20

# The tag bytes of so many untagged batches, by the count + 1 that Kafka writes in front of them. Nothing is
# equal to the entry of a null array.
NO_TAGS: tuple[bytes | None, ...] = (None, *(bytes(count) for count in range(127)))

# State batches that cost as much as one array element: they are kept as the bytes that came.
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
    """Packed batches of which some carried tagged fields that we do not know.

    The bytes are the canonical 20-byte pieces, so whoever does not care about tags uses them like any
    packed batches; a slice or a copy is plain bytes. ``tags`` maps a batch's index to its tagged-field
    section as it was read, so that a record is written back byte for byte.
    """

    tags: dict[int, bytes]

    def __new__(cls, packed: bytes, tags: Mapping[int, bytes]) -> "TaggedBatches":
        batches = super().__new__(cls, packed)
        batches.tags = dict(tags)
        return batches

    def __getnewargs__(self) -> tuple[bytes, dict[int, bytes]]:  # type: ignore[override]
        return bytes(self), self.tags

    def __eq__(self, other: object) -> bool:
        """Equal to other tagged batches only: without its tags this is another value."""
        return isinstance(other, TaggedBatches) and bytes(self) == bytes(other) and self.tags == other.tags

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash(bytes(self))


def pack(batches: Iterable[StateBatch]) -> bytes:
    """Pack batches into 20 bytes each, without a count."""
    return b"".join([_BATCH.pack(*batch) for batch in batches])


def unpack(packed: bytes) -> list[StateBatch]:
    """Unpack packed batches; DecodeError if they are not a whole number of 20-byte pieces."""
    if len(packed) % BATCH_BYTES:
        raise DecodeError(f"{len(packed)} bytes are not a whole number of {BATCH_BYTES}-byte state batches")
    return list(map(StateBatch._make, _BATCH.iter_unpack(packed)))


def read_tagged(buf: bytes, at: int) -> tuple[bytes, int]:
    """Read an array of batches, its count included: the general path of the generated codecs.

    Returns TaggedBatches, or plain bytes if no batch had tags, and the position behind the batches. A null
    array, which is not allowed anywhere, and more batches than ``buf`` can hold raise DecodeError.
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
            raise DecodeError(f"state batch {index} ends behind the end of the bytes")
        if buf[at:end] != b"\0":
            tags[index] = buf[at:end]
        at = end
    packed = b"".join([piece + b"\0" for piece in pieces])
    return (TaggedBatches(packed, tags) if tags else packed), at


def read_untagged(buf: bytes, at: int) -> tuple[bytes, int]:
    """Read an array of batches like `read_tagged`, and drop their tagged fields."""
    packed, at = read_tagged(buf, at)
    return bytes(packed), at


def read_untagged_within(buf: bytes, at: int, left: int) -> tuple[bytes, int, int]:
    """Read an array of batches like `read_untagged`; return the elements left after it, too.

    Batches without tagged fields stay one slice and count 1 for each 16; others count 1 each. Raises
    TooManyElementsError before anything is allocated.
    """
    count, first = read_length(buf, at)
    count -= 1
    end = first + count * BATCH_BYTES
    is_packed = end <= len(buf) and buf[first + _FIELDS_BYTES : end : BATCH_BYTES].count(0) == count
    left = spend(left, count // BATCHES_PER_ELEMENT if is_packed else count)
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
