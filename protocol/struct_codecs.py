# cython: annotation_typing=False
"""Decode and encode arrays, structs and messages of Kafka's protocol.

`protocol.message_codec` creates these objects once for each version of a message, from the annotations of its
class. The objects contain the field codecs of `protocol.field_codecs`.

If a C compiler is available, this source is compiled; see `coordinator.compiled_sources`.
"""

from collections.abc import Sequence
from struct import Struct as Fields
from struct import pack, unpack_from
from typing import Any

from msgspec.structs import astuple

from protocol.errors import DecodeError, EncodeError, UnsupportedVersionError
from protocol.field_codecs import UNLIMITED, DefaultValue, FieldCodec, Reader
from protocol.wire import (
    ELEMENTS_MAX,
    HEADER_ELEMENTS_MAX,
    MALFORMED,
    SHORT_UVARINTS,
    UNENCODABLE,
    write_uvarint,
)


class Array(FieldCodec):
    """An array: a count and the elements. All elements of an integer array are decoded in one call."""

    __slots__ = ("_element", "_integer", "_is_flexible", "_is_nullable")

    def __init__(
        self, element: FieldCodec | None, integer: str, is_flexible: bool, is_nullable: bool
    ) -> None:
        """`integer` is the `struct` format of an integer; "" if `element` reads the elements."""
        self.is_run = False
        self._element = element
        self._integer = integer
        self._is_flexible = is_flexible
        self._is_nullable = is_nullable

    def read(self, reader: Reader) -> Any:
        if self._is_flexible:
            count = reader.read_count() - 1
        else:
            (count,) = unpack_from(">i", reader.buf, reader.at)
            reader.at += 4
        if count < 0:
            if self._is_nullable and count == -1:
                return None
            raise DecodeError(f"length {count} before byte {reader.at}")
        reader.spend_budget(count)
        if self._element is None:
            numbers = Fields(f">{count}{self._integer}")
            at = reader.at
            reader.at += numbers.size
            return list(numbers.unpack_from(reader.buf, at))
        element = self._element
        elements = []
        for _ in range(count):
            elements.append(element.read(reader))
        return elements

    def write(self, value: Any, pieces: list[bytes]) -> None:
        if value is None and self._is_nullable:
            pieces.append(b"\0" if self._is_flexible else b"\xff\xff\xff\xff")
            return
        count = len(value)
        if self._is_flexible:
            pieces.append(SHORT_UVARINTS[count + 1] if count < 127 else write_uvarint(count + 1))
        else:
            pieces.append(pack(">i", count))
        if self._element is None:
            pieces.append(pack(f">{count}{self._integer}", *value))
            return
        element = self._element
        for each in value:
            element.write(each, pieces)


class TaggedFields:
    """The tagged-field section of a struct that has tagged fields.

    Tags are written in ascending order (KIP-482). Like Kafka's decoder, this one does not check the order,
    and drops unknown tags.
    """

    __slots__ = ("_fields", "_numbers")

    def __init__(self, fields: dict[int, tuple[int, FieldCodec, Any]]) -> None:
        """`fields` has position in the struct, codec and default of each tag, by ascending tag."""
        self._fields = fields
        self._numbers = {tag: write_uvarint(tag) for tag in fields}

    def read(self, reader: Reader, values: list[Any]) -> None:
        """Read the section, and replace the defaults in `values` by the values of the tagged fields."""
        count = reader.read_count()
        reader.spend_budget(count)
        for _ in range(count):
            tag = reader.read_count()
            size = reader.read_count()
            end = reader.at + size
            if end > len(reader.buf):
                left = len(reader.buf) - reader.at
                raise DecodeError(
                    f"tagged field at byte {reader.at} has {size} bytes, of which {left} are there"
                )
            field = self._fields.get(tag)
            if field is not None:
                codec = field[1]
                value = codec.read(reader)
                values[field[0]] = value[0] if codec.is_run else value
                if reader.at != end:
                    raise DecodeError(f"tag {tag} ends at byte {reader.at}, not at byte {end}")
            reader.at = end

    def write(self, values: tuple[Any, ...], pieces: list[bytes]) -> None:
        """Add the section: the fields that differ from their defaults."""
        count = 0
        sections: list[bytes] = []
        for tag, (index, codec, default) in self._fields.items():
            value = values[index]
            if value != default:
                written: list[bytes] = []
                codec.write((value,) if codec.is_run else value, written)
                size = sum(map(len, written))
                sections.append(self._numbers[tag])
                sections.append(write_uvarint(size))
                sections += written
                count += 1
        pieces.append(SHORT_UVARINTS[count])
        pieces += sections


class StructCodec(FieldCodec):
    """A struct in one version, and its tagged-field section."""

    __slots__ = ("_is_flexible", "_make", "_missing", "_name", "_only", "_parts", "_tagged", "_written")

    def __init__(
        self,
        make: Any,
        name: str,
        parts: Sequence[FieldCodec],
        missing: Sequence[tuple[int, str, Any]],
        tagged: TaggedFields | None,
        is_flexible: bool,
    ) -> None:
        """`missing` are the fields that the version lacks. `name` is the message and version.

        Fields after the last of `parts` get their defaults.
        """
        self.is_run = False
        self._make = make
        self._name = name
        self._parts = tuple(parts)
        self._written = tuple([part for part in parts if not isinstance(part, DefaultValue)])
        self._missing = tuple(missing)
        self._tagged = tagged
        self._is_flexible = is_flexible
        # The codec of all fields if they have a fixed size and none is tagged.
        self._only = self._parts[0] if len(parts) == 1 and parts[0].is_run and tagged is None else None

    def read(self, reader: Reader) -> Any:
        if self._only is not None:
            fixed = self._only.read(reader)
            if self._is_flexible:
                if reader.buf[reader.at]:
                    reader.skip_tags()
                else:
                    reader.at += 1
            return self._make(*fixed)
        values: list[Any] = []
        for part in self._parts:
            value = part.read(reader)
            if part.is_run:
                values += value
            else:
                values.append(value)
        if self._tagged is not None:
            self._tagged.read(reader, values)
        elif self._is_flexible:
            if reader.buf[reader.at]:
                reader.skip_tags()
            else:
                reader.at += 1
        return self._make(*values)

    def write(self, value: Any, pieces: list[bytes]) -> None:
        values: tuple[Any, ...] = astuple(value)
        if self._missing:
            self._reject_unsupported_fields(values)
        for part in self._written:
            part.write(values[part.first : part.last] if part.is_run else values[part.first], pieces)
        if self._tagged is not None:
            self._tagged.write(values, pieces)
        elif self._is_flexible:
            pieces.append(b"\0")

    def _reject_unsupported_fields(self, values: tuple[Any, ...]) -> None:
        """Raise EncodeError if a field that this version lacks does not have its default value."""
        for index, _, default in self._missing:
            if values[index] != default:
                names = ", ".join([name for _, name, _ in self._missing])
                raise EncodeError(f"{self._name} has no {names}")


class MessageCodec:
    """All versions of a message."""

    __slots__ = ("_codecs", "_name", "_record_version")

    def __init__(self, name: str, codecs: dict[int, StructCodec]) -> None:
        """`codecs` maps each version of the message to its codec."""
        self._name = name
        self._codecs = codecs
        self._record_version = max(codecs)

    def decode_request(self, buf: bytes, offset: int, version: int, elements_max: int = ELEMENTS_MAX) -> Any:
        """Decode a request from `offset` to the end of `buf`; raise TooManyElementsError above the limit."""
        return self._decode_to_end(Reader(buf, offset, elements_max), version)

    def decode_response(self, buf: bytes, offset: int, version: int) -> Any:
        """Decode a response from `offset` to the end of `buf`."""
        return self._decode_to_end(Reader(buf, offset, UNLIMITED), version)

    def decode_record(self, buf: bytes, offset: int) -> Any:
        """Decode the key or value of a record from `offset` to the end of `buf`."""
        return self._decode_to_end(Reader(buf, offset, UNLIMITED), self._record_version)

    def decode_header(self, buf: bytes, offset: int, header_version: int) -> tuple[Any, int]:
        """Decode a header at `offset`; return it and the position after it."""
        reader = Reader(buf, offset, HEADER_ELEMENTS_MAX)
        header = self._decode(reader, header_version)
        if reader.at > len(buf):
            raise DecodeError(f"{self._name} ends at byte {reader.at} of {len(buf)}")
        return header, reader.at

    def encode(self, message: Any, version: int) -> bytes:
        """Encode a message. Raises EncodeError if a value has no wire form."""
        codec = self._codecs.get(version)
        if codec is None:
            raise UnsupportedVersionError(f"version {version} of {self._name}")
        pieces: list[bytes] = []
        try:
            codec.write(message, pieces)
        except UNENCODABLE as error:
            raise EncodeError(f"{self._name}: {error}") from error
        return b"".join(pieces)

    def encode_record(self, message: Any) -> bytes:
        """Encode the key or value of a record."""
        return self.encode(message, self._record_version)

    def _decode_to_end(self, reader: Reader, version: int) -> Any:
        message = self._decode(reader, version)
        if reader.at != len(reader.buf):
            raise DecodeError(f"{self._name} ends at byte {reader.at} of {len(reader.buf)}")
        return message

    def _decode(self, reader: Reader, version: int) -> Any:
        codec = self._codecs.get(version)
        if codec is None:
            raise UnsupportedVersionError(f"version {version} of {self._name}")
        try:
            return codec.read(reader)
        except MALFORMED as error:
            raise DecodeError(f"{self._name}: {error}") from error
