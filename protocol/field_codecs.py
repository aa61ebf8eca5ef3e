# cython: annotation_typing=False
"""Decode and encode the fields of Kafka messages, one class for each form on the wire.

`protocol.message_codec` creates these objects once for each version of a message, from the annotations of its
class. `read` returns a value and moves the reader; `write` adds the bytes of a value to a list.

At the end of the bytes a reader raises one of `protocol.wire.MALFORMED`. A short slice does not raise, but
moves the reader beyond the end, which a later read or the final check of the message detects.

If a C compiler is available, this source is compiled; see `coordinator.compiled_sources`.
"""

from collections.abc import Sequence
from struct import Struct as Fields
from typing import Any

from protocol.errors import DecodeError, EncodeError, TooManyElementsError
from protocol.state_batches import BATCH_BYTES, BATCHES_PER_ELEMENT, NO_TAGS
from protocol.wire import SHORT_UVARINTS, STRING_BYTES_MAX, read_uvarint, write_uvarint

# The element budget of responses and records, which come from trusted sources.
UNLIMITED = 1 << 62


class Reader:
    """The bytes of a message, the position in them, and the number of elements that may still be decoded."""

    __slots__ = ("at", "buf", "left")

    def __init__(self, buf: bytes, at: int, left: int) -> None:
        self.buf = buf
        self.at = at
        self.left = left

    def read_count(self) -> int:
        """Read an unsigned varint."""
        count = self.buf[self.at]
        if count < 128:
            self.at += 1
            return count
        count, self.at = read_uvarint(self.buf, self.at)
        return count

    def spend_budget(self, count: int) -> None:
        """Subtract a number of elements from the budget."""
        if count > self.left:
            raise TooManyElementsError(f"more elements than allowed before byte {self.at}")
        self.left -= count

    def skip_tags(self) -> None:
        """Skip a tagged-field section; the position after it may be beyond the end of the bytes."""
        count = self.read_count()
        self.spend_budget(count)
        for _ in range(count):
            self.read_count()
            size = self.read_count()
            self.at += size


class FieldCodec:
    """The codec of a field, of an array element or, if `is_run`, of several adjacent fields.

    In a struct, a codec covers the fields from index ``first`` to ``last`` (exclusive).
    """

    __slots__ = ("first", "is_run", "last")

    first: int
    last: int
    is_run: bool

    def read(self, reader: Reader) -> Any:
        """Return the next value, or a tuple of values if `is_run`."""
        raise AssertionError("a field must define how it is read")

    def write(self, value: Any, pieces: list[bytes]) -> None:
        """Append the bytes of a value to `pieces`."""
        raise AssertionError("a field must define how it is written")


class FixedFields(FieldCodec):
    """Adjacent fields of fixed size, read and written with one `struct.Struct`."""

    __slots__ = ("_pack", "_size", "_unpack", "_uuids")

    def __init__(self, formats: str, uuids: Sequence[tuple[int, str]]) -> None:
        """`uuids` are the positions and names of the topic ids, whose length `struct` does not check."""
        self.is_run = True
        fields = Fields(">" + formats)
        self._unpack = fields.unpack_from
        self._pack = fields.pack
        self._size = fields.size
        self._uuids = tuple(uuids)

    def read(self, reader: Reader) -> Any:
        values = self._unpack(reader.buf, reader.at)
        reader.at += self._size
        return values

    def write(self, value: Any, pieces: list[bytes]) -> None:
        for index, name in self._uuids:
            if len(value[index]) != 16:
                raise EncodeError(f"{name} is not 16 bytes long")
        pieces.append(self._pack(*value))


class DefaultValue(FieldCodec):
    """A field without bytes in the untagged part of a struct: the version lacks it, or it is tagged."""

    __slots__ = ("_default",)

    def __init__(self, default: Any) -> None:
        self.is_run = False
        self._default = default

    def read(self, reader: Reader) -> Any:
        return [] if type(self._default) is list else self._default


class CompactText(FieldCodec):
    """A string or bytes of a flexible version: a varint of length + 1, 0 if null."""

    __slots__ = ("_is_nullable", "_is_string")

    def __init__(self, is_string: bool, is_nullable: bool) -> None:
        self.is_run = False
        self._is_string = is_string
        self._is_nullable = is_nullable

    def read(self, reader: Reader) -> Any:
        at = reader.at + 1
        size = reader.buf[reader.at] - 1
        if size > 126:
            size = reader.read_count() - 1
            at = reader.at
        if size < 0:
            reader.at = at
            if self._is_nullable:
                return None
            raise DecodeError(f"null before byte {at} where a value is required")
        if size > 126:
            if self._is_string and size > STRING_BYTES_MAX:
                raise DecodeError(
                    f"string of {size} bytes at byte {at}: Kafka allows {STRING_BYTES_MAX} at most"
                )
            reader.spend_budget((size + 1) >> 6)
        end = at + size
        reader.at = end
        if self._is_string:
            return reader.buf[at:end].decode("utf-8")
        return reader.buf[at:end]

    def write(self, value: Any, pieces: list[bytes]) -> None:
        if value is None and self._is_nullable:
            pieces.append(b"\0")
            return
        written = value.encode() if self._is_string else value
        size = len(written) + 1
        pieces.append(SHORT_UVARINTS[size] if size < 128 else write_uvarint(size))
        pieces.append(written)


class LegacyText(FieldCodec):
    """A string with an int16 length, or bytes with an int32 length; null has the length -1."""

    __slots__ = ("_is_nullable", "_is_string", "_length")

    def __init__(self, is_string: bool, is_nullable: bool) -> None:
        self.is_run = False
        self._is_string = is_string
        self._is_nullable = is_nullable
        self._length = Fields(">h" if is_string else ">i")

    def read(self, reader: Reader) -> Any:
        (size,) = self._length.unpack_from(reader.buf, reader.at)
        at = reader.at + (2 if self._is_string else 4)
        reader.at = at
        if size < 0:
            if self._is_nullable and size == -1:
                return None
            raise DecodeError(f"length {size} before byte {at}")
        reader.spend_budget(size >> 6)
        end = at + size
        reader.at = end
        if self._is_string:
            return reader.buf[at:end].decode("utf-8")
        return reader.buf[at:end]

    def write(self, value: Any, pieces: list[bytes]) -> None:
        if value is None and self._is_nullable:
            pieces.append(self._length.pack(-1))
            return
        written = value.encode() if self._is_string else value
        pieces.append(self._length.pack(len(written)))
        pieces.append(written)


class StateBatches(FieldCodec):
    """An array of state batches, kept as packed bytes (`protocol.state_batches`).

    Every 20th byte is zero if no batch has tags. 16 batches without tags cost 1 element of the budget; if any
    batch has tags, each batch costs 1.
    """

    __slots__ = ()

    def __init__(self) -> None:
        self.is_run = False

    def read(self, reader: Reader) -> Any:
        buf = reader.buf
        at = reader.at + 1
        count = buf[reader.at]
        end = at + (count - 1) * BATCH_BYTES
        if (count == 2 and not buf[at + 19]) or (count < 128 and buf[at + 19 : end : 20] == NO_TAGS[count]):
            reader.at = end
            return buf[at:end]
        count = reader.read_count() - 1
        at = reader.at
        if count < 0:
            raise DecodeError(f"null before byte {at} where a value is required")
        if count > (len(buf) - at) // BATCH_BYTES:
            raise DecodeError(f"{count} state batches cannot be in the {len(buf) - at} bytes from byte {at}")
        end = at + count * BATCH_BYTES
        if buf[at + 19 : end : 20].count(0) == count:
            reader.spend_budget(count // BATCHES_PER_ELEMENT)
            reader.at = end
            return buf[at:end]
        reader.spend_budget(count)
        pieces = []
        for _ in range(count):
            pieces.append(buf[reader.at : reader.at + 19])
            reader.at += 19
            reader.skip_tags()
        return b"".join([piece + b"\0" for piece in pieces])

    def write(self, value: Any, pieces: list[bytes]) -> None:
        if len(value) % BATCH_BYTES:
            raise EncodeError("state_batches are not a whole number of 20-byte pieces")
        count = len(value) // BATCH_BYTES + 1
        pieces.append(SHORT_UVARINTS[count] if count < 128 else write_uvarint(count))
        pieces.append(value)
