"""Derive Hypothesis strategies for all messages from the schemas."""

from collections.abc import Iterator
from functools import cache
from typing import Any

from hypothesis import strategies as st

from tests.property.wire_model import INT_BYTES, message_class
from tests.schemas.parser import Field, Message, Struct

# Texts whose length field has one byte, and texts whose length field has two bytes.
_TEXTS = st.text(max_size=12) | st.sampled_from(["", "x" * 126, "x" * 127, "x" * 128, "grüße:ⲁ:😀"])

# Tag numbers that no schema uses; schemas use 0 to 3 and 1000.
_UNKNOWN_TAG_NUMBERS = st.integers(4, 999) | st.integers(1001, 2**31 - 1)

# Unknown tagged fields of one section.
unknown_tags = st.dictionaries(_UNKNOWN_TAG_NUMBERS, st.binary(max_size=6), max_size=3).map(
    lambda fields: sorted(fields.items())
)

packed_batches = st.lists(st.binary(min_size=19, max_size=19), max_size=5).map(
    lambda batches: b"".join(batch + b"\0" for batch in batches)
)


@cache
def message_values(message: Message, version: int) -> st.SearchStrategy[Any]:
    """Return a strategy for values of a version; fields that the version lacks keep their defaults."""
    return _struct_values(message, message.body, version)


def _struct_values(message: Message, struct: Struct, version: int) -> st.SearchStrategy[Any]:
    present = [field for field in struct.fields if version in field.versions]
    fields = {field.attribute: _field_values(message, field, version) for field in present}
    return st.builds(message_class(message, struct), **fields)


def _field_values(message: Message, field: Field, version: int) -> st.SearchStrategy[Any]:
    if field.is_packed:
        return packed_batches
    element = (
        _scalar_values(field.type) if field.struct is None else _struct_values(message, field.struct, version)
    )
    value = st.lists(element, max_size=3) if field.is_array else element
    return st.none() | value if version in field.nullable else value


def _scalar_values(type_name: str) -> st.SearchStrategy[Any]:
    if type_name in INT_BYTES:
        bits = 8 * INT_BYTES[type_name]
        # Generate default values often, because tagged fields with defaults are not encoded.
        return st.sampled_from([-1, 0]) | st.integers(-(1 << bits - 1), (1 << bits - 1) - 1)
    if type_name == "bool":
        return st.booleans()
    if type_name == "uuid":
        return st.binary(min_size=16, max_size=16)
    return st.binary(max_size=12) if type_name == "bytes" else _TEXTS


def large_value(message: Message, version: int, count: int) -> Any:
    """Return a value with `count` elements in each array and `count` characters in each text."""
    return _large_struct(message, message.body, version, count)


def _large_struct(message: Message, struct: Struct, version: int, count: int) -> Any:
    fields: dict[str, Any] = {}
    for field in struct.fields:
        if version not in field.versions:
            continue
        if field.is_packed:
            item: Any = (b"\1" * 19 + b"\0") * count
        elif field.struct is not None and not field.is_array:
            item = _large_struct(message, field.struct, version, count)
        elif field.struct is not None:
            # Nested arrays have only two elements in the outer array, to limit the size.
            has_arrays = any(inner.is_array and not inner.is_packed for inner in field.struct.fields)
            inner_count = count if not has_arrays else 2
            item = [_large_struct(message, field.struct, version, count) for _ in range(inner_count)]
        elif field.is_array:
            item = [7 if field.type in INT_BYTES else "x" * count for _ in range(count)]
        else:
            item = {"string": "x" * count, "bytes": b"x" * count, "uuid": b"u" * 16, "bool": True}.get(
                field.type, 7
            )
        fields[field.attribute] = item
    return message_class(message, struct)(**fields)


_UNFIT = {"uuid": bytes(15), "string": "\ud800", "bytes": None} | {
    name: 1 << 8 * size - 1 for name, size in INT_BYTES.items()
}


def invalid_values(message: Message, version: int) -> Iterator[Any]:
    """Yield values with one invalid field: its value does not fit the type, or the version lacks it."""
    for path in _field_paths(message.body, version):
        value = large_value(message, version, 1)
        holder = value
        for field in path[:-1]:
            inner = getattr(holder, field.attribute)
            holder = inner[0] if field.is_array else inner
        field = path[-1]
        unfit: Any = bytes(19) if field.is_packed else _UNFIT.get(field.type)
        if unfit is not None:
            setattr(holder, field.attribute, [unfit] if field.is_array and not field.is_packed else unfit)
            yield value
    for field in message.body.fields:
        if version not in field.versions and not field.is_ignorable:
            value = large_value(message, version, 1)
            element = message_class(message, field.struct)() if field.struct else "x"
            setattr(
                value, field.attribute, [element] if field.is_array else {"string": "x"}.get(field.type, 7)
            )
            yield value


def _field_paths(struct: Struct, version: int) -> Iterator[tuple[Field, ...]]:
    """Yield the path from a message to each of its fields that is not a struct."""
    for field in struct.fields:
        if version not in field.versions:
            continue
        if field.struct is None or field.is_packed:
            yield (field,)
        else:
            yield from ((field, *path) for path in _field_paths(field.struct, version))
