"""Encode messages with a simple model of Kafka's wire format, to test the codecs.

The model walks a schema and a value together and shares no code with the codecs. Unlike the codecs, the model
can also write unknown tagged fields in every section.
"""

from collections.abc import Callable
from importlib import import_module
from typing import Any

from protocol.state_batches import BATCH_BYTES
from tests.schemas.parser import Field, Message, Struct, all_messages

Tags = list[tuple[int, bytes]]

INT_BYTES = {"int8": 1, "int16": 2, "int32": 4, "int64": 8}


def all_cases() -> list[tuple[Message, int]]:
    """Return every version of every message."""
    return [
        (message, version)
        for message in all_messages()
        for version in range(message.versions.first, message.versions.last + 1)
    ]


def case_id(case: tuple[Message, int]) -> str:
    return f"{case[0].name}-v{case[1]}"


def message_class(message: Message, struct: Struct) -> Any:
    return getattr(import_module(f"protocol.messages.{message.module}"), struct.name)


class MessageCodec:
    """The functions for one version of a message, with the same interface for all messages."""

    def __init__(self, message: Message, version: int) -> None:
        self._module: Any = import_module(f"protocol.messages.{message.module}")
        self._is_header = message.type == "header"
        self._version = [] if message.type.startswith("coordinator") else [version]
        kinds = {"header": "", "coordinator-key": "_key", "coordinator-value": "_value"}
        self._suffix = kinds.get(message.type, f"_{message.type}")

    def encode(self, value: Any) -> bytes:
        encoded: bytes = getattr(self._module, f"encode{self._suffix}")(value, *self._version)
        return encoded

    def decode(self, buf: bytes, offset: int = 0) -> Any:
        decoded = getattr(self._module, f"decode{self._suffix}")(buf, offset, *self._version)
        return decoded[0] if self._is_header else decoded


def make_no_tags() -> Tags:
    return []


def encode_reference(
    message: Message, value: Any, version: int, unknown: Callable[[], Tags] = make_no_tags
) -> bytes:
    """Encode a value. `unknown` returns the unknown tags of each tagged-field section, in wire order."""
    return _encode_struct(message, message.body, value, version, unknown)


def _encode_struct(
    message: Message, struct: Struct, value: Any, version: int, unknown: Callable[[], Tags]
) -> bytes:
    written = b""
    tags: Tags = []
    for field in struct.fields:
        if version not in field.versions:
            continue
        item = getattr(value, field.attribute)
        if field.tag is None:
            written += _encode_field(message, field, item, version, unknown)
        elif item != field.default_value:
            tags.append((field.tag, _encode_field(message, field, item, version, unknown)))
    if version not in message.flexible:
        return written
    return written + _encode_tags(tags + unknown())


def _encode_field(
    message: Message, field: Field, item: Any, version: int, unknown: Callable[[], Tags]
) -> bytes:
    is_flexible = version in field.flexible
    if field.is_packed:
        starts = range(0, len(item), BATCH_BYTES)
        written = [item[start : start + BATCH_BYTES - 1] + _encode_tags(unknown()) for start in starts]
        return encode_uvarint(len(written) + 1) + b"".join(written)
    if field.is_array and item is None:
        return encode_uvarint(0) if is_flexible else _encode_int(-1, 4)
    if field.is_array:
        count = encode_uvarint(len(item) + 1) if is_flexible else _encode_int(len(item), 4)
        if field.type in INT_BYTES:
            return count + b"".join(_encode_int(each, INT_BYTES[field.type]) for each in item)
        if field.struct is None:
            return count + b"".join(_encode_text(each.encode(), is_flexible, 2) for each in item)
        inner = field.struct
        return count + b"".join(_encode_struct(message, inner, each, version, unknown) for each in item)
    if field.struct is not None:
        return _encode_struct(message, field.struct, item, version, unknown)
    if field.type == "string":
        return _encode_text(None if item is None else item.encode(), is_flexible, 2)
    if field.type == "bytes":
        return _encode_text(item, is_flexible, 4)
    if field.type == "uuid":
        return bytes(item)
    return _encode_int(item, INT_BYTES[field.type]) if field.type in INT_BYTES else bytes([item])


def _encode_text(text: bytes | None, is_flexible: bool, length_bytes: int) -> bytes:
    if text is None:
        return encode_uvarint(0) if is_flexible else _encode_int(-1, length_bytes)
    return (encode_uvarint(len(text) + 1) if is_flexible else _encode_int(len(text), length_bytes)) + text


def _encode_int(number: int, size: int) -> bytes:
    return number.to_bytes(size, "big", signed=True)


def _encode_tags(tags: Tags) -> bytes:
    fields = [encode_uvarint(tag) + encode_uvarint(len(field)) + field for tag, field in sorted(tags)]
    return encode_uvarint(len(fields)) + b"".join(fields)


def encode_uvarint(number: int) -> bytes:
    low, high = number % 128, number // 128
    return bytes([low + 128]) + encode_uvarint(high) if high else bytes([low])
