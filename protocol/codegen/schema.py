"""Parse message schemas into messages, structs, fields and version ranges.

The grammar is a part of Kafka's (JSON with ``//`` comments). Any other element raises SchemaError, so that no
generated codec is silently wrong. One attribute is not Kafka's: ``"packed": true`` on an array of state
batches keeps them as wire bytes (`protocol.state_batches`).
"""

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

# Kafka's fixed-size types, as format characters of `struct`.
FIXED_FORMATS = {"bool": "?", "int8": "b", "int16": "h", "int32": "i", "int64": "q", "uuid": "16s"}

_SCALARS = (*FIXED_FORMATS, "string", "bytes")
_INTEGERS = ("int8", "int16", "int32", "int64")
_PACKED_ELEMENT = ["int64", "int64", "int8", "int16"]
_MESSAGE_TYPES = ("request", "response", "header", "coordinator-key", "coordinator-value")


class SchemaError(ValueError):
    """A schema is invalid, or uses an element that this generator does not support."""


@dataclass(frozen=True)
class Versions:
    """The versions ``first..last``, both inclusive; empty if ``first`` is above ``last``."""

    first: int
    last: int

    def __contains__(self, version: int) -> bool:
        return self.first <= version <= self.last

    @classmethod
    def parse(cls, text: str, valid: "Versions | None" = None) -> "Versions":
        """Parse ``none``, ``3``, ``0-3`` or ``3+``; an open end is the last of the valid versions."""
        if text == "none":
            return cls(0, -1)
        matched = re.fullmatch(r"(\d+)(?:(\+)|-(\d+))?", text)
        if matched is None:
            raise SchemaError(f"{text!r} is not a range of versions")
        first, is_open, last = matched.groups()
        if is_open and valid is None:
            raise SchemaError(f"{text!r} has no end")
        parsed_last = valid.last if is_open and valid else int(last or first)
        return cls(int(first), min(parsed_last, valid.last) if valid else parsed_last)


@dataclass(frozen=True)
class Struct:
    """A sequence of fields, for which one class is generated."""

    name: str
    about: str
    fields: "tuple[Field, ...]"


@dataclass(frozen=True)
class Field:
    """One field of a struct. If ``is_array``, ``type`` is the type of an element."""

    name: str
    type: str
    is_array: bool
    struct: Struct | None
    is_packed: bool
    versions: Versions
    nullable: Versions
    flexible: Versions
    tag: int | None
    default: str | None
    is_ignorable: bool
    about: str

    @property
    def attribute(self) -> str:
        """The name in Python."""
        return snake_case(self.name)

    @property
    def python_type(self) -> str:
        if self.is_packed:
            return "bytes"
        scalar = {"bool": "bool", "uuid": "bytes", "bytes": "bytes", "string": "str"}
        element = self.struct.name if self.struct is not None else scalar.get(self.type, "int")
        python_type = f"list[{element}]" if self.is_array else element
        return f"{python_type} | None" if self.nullable.first <= self.nullable.last else python_type

    @property
    def default_code(self) -> str:
        """The default as Python code: the schema's default, else the zero value of the type."""
        if self.is_packed or self.type == "bytes":
            return 'b""'
        if self.is_array:
            return "[]"
        if self.default == "null":
            return "None"
        if self.type == "string":
            return json.dumps(self.default or "")
        if self.type == "uuid":
            return "bytes(16)"
        if self.type == "bool":
            return str(self.default == "true")
        return str(int(self.default or "0"))


@dataclass(frozen=True)
class Message:
    """One schema file."""

    type: str
    api_key: int | None
    versions: Versions
    flexible: Versions
    body: Struct

    @property
    def name(self) -> str:
        return self.body.name

    @property
    def keeps_unknown_tags(self) -> bool:
        """True for record values, because a record is written back with the tags that it was read with."""
        return self.type == "coordinator-value"

    def layouts(self) -> list[Versions]:
        """Return the ranges of consecutive versions with equal encoding, in ascending order."""
        runs: list[Versions] = []
        for version in range(self.versions.first, self.versions.last + 1):
            if runs and self._struct_layout(self.body, version) == self._struct_layout(
                self.body, runs[-1].last
            ):
                runs[-1] = Versions(runs[-1].first, version)
            else:
                runs.append(Versions(version, version))
        return runs

    def _struct_layout(self, struct: Struct, version: int) -> tuple[object, ...]:
        fields = [
            (
                field.name,
                version in field.nullable,
                field.struct and self._struct_layout(field.struct, version),
            )
            for field in struct.fields
            if version in field.versions
        ]
        return (version in self.flexible, *fields)


def snake_case(name: str) -> str:
    """Convert a schema's name to a Python name: ``ZkMigrationReady`` to ``zk_migration_ready``."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()


def read_messages(directory: Path) -> list[Message]:
    """Read every schema below a directory, ordered by file name. Raises SchemaError with the file's name."""
    messages = []
    for path in sorted(directory.rglob("*.json"), key=lambda path: path.name):
        try:
            messages.append(parse_message(path.read_text(encoding="utf-8")))
        except (ValueError, KeyError) as error:
            raise SchemaError(f"{path.name}: {error!r}") from error
    return messages


def parse_message(text: str) -> Message:
    """Parse one schema. Raises SchemaError, another ValueError or KeyError if it is not supported."""
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("//")]
    schema = cast(dict[str, Any], json.loads("\n".join(lines)))
    if schema["type"] not in _MESSAGE_TYPES:
        raise SchemaError(f"message type {schema['type']!r}")
    versions = Versions.parse(schema["validVersions"])
    flexible = Versions.parse(schema["flexibleVersions"], versions)
    body = Struct(schema["name"], schema.get("about", ""), _parse_fields(schema, versions, flexible))
    return Message(schema["type"], schema.get("apiKey"), versions, flexible, body)


def _parse_fields(holder: dict[str, Any], valid: Versions, flexible: Versions) -> tuple[Field, ...]:
    return tuple(_parse_field(field, valid, flexible) for field in holder["fields"])


def _parse_field(schema: dict[str, Any], valid: Versions, flexible: Versions) -> Field:
    """Parse a field and its nested fields."""
    known = {"name", "type", "versions", "nullableVersions", "flexibleVersions", "taggedVersions", "tag"}
    known |= {"default", "ignorable", "about", "fields", "packed"}
    if schema.keys() - known:
        raise SchemaError(f"{schema['name']}: {sorted(schema.keys() - known)} not understood")
    is_array = schema["type"].startswith("[]")
    # The generated codecs do not decode record batches.
    type_name = "bytes" if schema["type"] == "records" else schema["type"].removeprefix("[]")
    versions = Versions.parse(schema["versions"], valid)
    struct = None
    if "fields" in schema:
        struct = Struct(type_name, schema.get("about", ""), _parse_fields(schema, valid, flexible))
    elif type_name not in _SCALARS:
        raise SchemaError(f"{schema['name']}: type {schema['type']!r}")
    # A field of a flexible version may keep the older encoding, as the client id of a request header does.
    if "flexibleVersions" in schema:
        flexible = Versions.parse(schema["flexibleVersions"], valid)
    field = Field(
        name=schema["name"],
        type=type_name,
        is_array=is_array,
        struct=struct,
        is_packed=schema.get("packed", False),
        versions=versions,
        nullable=Versions.parse(schema.get("nullableVersions", "none"), valid),
        flexible=flexible,
        tag=schema.get("tag"),
        default=schema.get("default"),
        is_ignorable=schema.get("ignorable", False),
        about=schema.get("about", ""),
    )
    _check_field(field, schema)
    return field


def _check_field(field: Field, schema: dict[str, Any]) -> None:
    """Raise SchemaError if the generator does not support a combination that Kafka's grammar allows."""
    is_nullable = field.nullable.first <= field.nullable.last
    if field.struct is not None and (
        field.type in _SCALARS or (not field.is_array and field.tag is not None)
    ):
        raise SchemaError(f"{field.name}: fields of a {field.type}, or of a tagged struct outside an array")
    if is_nullable and not field.is_array and field.type not in ("string", "bytes"):
        raise SchemaError(f"{field.name}: only strings, bytes and arrays may be null")
    if is_nullable and field.is_array and (field.is_packed or field.tag is not None):
        raise SchemaError(f"{field.name}: an array that may be null and is packed or tagged")
    if field.is_array and field.struct is None and field.type not in ("string", *_INTEGERS):
        raise SchemaError(f"{field.name}: an array of {field.type}")
    if (field.tag is None) != ("taggedVersions" not in schema):
        raise SchemaError(f"{field.name}: a tag and its versions go together")
    if field.tag is not None and schema["taggedVersions"] != schema["versions"]:
        raise SchemaError(f"{field.name}: tagged in some of its versions only")
    if field.is_packed:
        below = field.struct.fields if field.struct else ()
        if not field.is_array or [inner.type for inner in below] != _PACKED_ELEMENT:
            raise SchemaError(f"{field.name}: only arrays of state batches are packed")
