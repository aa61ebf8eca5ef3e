"""State batches and their packed wire form.

Kafka encodes an array of state batches as a count, and each batch as ``>qqbh`` and a tagged-field section.
Kafka defines no tags there, so the section is a single zero byte. An array without tags is therefore a
sequence of 20-byte entries that can be kept, compared and copied unchanged. In this project, *packed* batches
are those bytes without the count. Like Kafka's coordinator, the decoder drops unknown tags.
"""

from collections.abc import Iterable
from struct import Struct
from typing import NamedTuple

from protocol.errors import DecodeError

BATCH_BYTES = 20

# The tag bytes of untagged batches, indexed by the count + 1 that precedes them on the wire. The entry of a
# null array is None, which equals no bytes.
NO_TAGS: tuple[bytes | None, ...] = (None, *(bytes(count) for count in range(127)))

# Number of untagged batches that count as one array element, because they are copied without decoding.
BATCHES_PER_ELEMENT = 16

_BATCH = Struct(">qqbhx")

# The names of the delivery states by number. ACQUIRED is never stored. Source: RecordState of Kafka 4.4.
DELIVERY_STATES = {0: "AVAILABLE", 1: "ACQUIRED", 2: "ACKNOWLEDGED", 3: "ARCHIVING", 4: "ARCHIVED"}


def delivery_state_name(delivery_state: int) -> str:
    """Return the name of a delivery state, or UNKNOWN."""
    return DELIVERY_STATES.get(delivery_state, "UNKNOWN")


class StateBatch(NamedTuple):
    """Offsets ``first_offset..last_offset``, both inclusive, in one delivery state."""

    first_offset: int
    last_offset: int
    delivery_state: int
    delivery_count: int


def pack(batches: Iterable[StateBatch]) -> bytes:
    """Pack batches into 20 bytes each, without a count."""
    return b"".join([_BATCH.pack(*batch) for batch in batches])


def unpack(packed: bytes) -> list[StateBatch]:
    """Unpack packed batches; raise DecodeError if the length is not a multiple of 20 bytes."""
    if len(packed) % BATCH_BYTES:
        raise DecodeError(f"{len(packed)} bytes are not a whole number of {BATCH_BYTES}-byte state batches")
    return list(map(StateBatch._make, _BATCH.iter_unpack(packed)))
