"""Annotations of the fields of Kafka messages: types on the wire, versions and tags.

The classes in `protocol.messages` use these types. ``str``, ``bytes``, ``bool``, lists, nested classes and
``| None`` need no annotation.
"""

from enum import Enum
from typing import Annotated, NamedTuple


class FixedSize(NamedTuple):
    """A type of fixed size, by its format character of `struct`."""

    format: str


class Versions(NamedTuple):
    """The versions ``first..last``, both inclusive, that have the field; by default, all versions."""

    first: int
    last: int = 32767


class Tag(NamedTuple):
    """The field is in the tagged-field section, unless its value is the default."""

    number: int


class Marker(Enum):
    """Annotations without a value."""

    # The encoder drops the field in versions that lack it, even if its value is not the default.
    IGNORABLE = 1
    # The field keeps its older encoding in flexible versions.
    LEGACY = 2
    # Packed state batches (`protocol.state_batches`).
    STATE_BATCHES = 3


IGNORABLE = Marker.IGNORABLE
LEGACY = Marker.LEGACY

Int8 = Annotated[int, FixedSize("b")]
Int16 = Annotated[int, FixedSize("h")]
Int32 = Annotated[int, FixedSize("i")]
Int64 = Annotated[int, FixedSize("q")]
Uuid = Annotated[bytes, FixedSize("16s")]
StateBatches = Annotated[bytes, Marker.STATE_BATCHES]
