"""Parse message schemas, with which tests compare the classes and codecs of `protocol.messages`.

The schemas are in Kafka's format (JSON with ``//`` comments). `tests/conformance/test_schemas.py` compares
the schemas with Kafka's own schemas. One attribute is not Kafka's: an array of state batches with ``"packed":
true`` is kept as wire bytes (`protocol.state_batches`). An unknown attribute raises KeyError.
"""

import json
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

SCHEMAS = Path(__file__).parent
# Schemas of requests that only brokers answer.
BROKER_SCHEMAS = SCHEMAS / "brokers"


@dataclass(frozen=True)
class Versions:
    """The versions ``first..last``, both inclusive; empty if ``first`` is above ``last``."""

    first: int
    last: int

    def __contains__(self, version: int) -> bool:
        return self.first <= version <= self.last

    @classmethod
    def parse(cls, text: str, last: int = 32767) -> "Versions":
        """Parse ``none``, ``3``, ``0-3`` or ``3+``; no range ends after ``last``."""
        if text == "none":
            return cls(0, -1)
        matched = re.fullmatch(r"(\d+)(?:(\+)|-(\d+))?", text)
        assert matched is not None, text
        first, is_open, end = matched.groups()
        return cls(int(first), last if is_open else min(int(end or first), last))


@dataclass(frozen=True)
class Field:
    """One field of a struct. If ``is_array``, ``type`` is the type of an element."""

    name: str
    type: str
    is_array: bool
    struct: "Struct | None"
    is_packed: bool
    versions: Versions
    nullable: Versions
    flexible: Versions
    tag: int | None
    default: str | None
    is_ignorable: bool

    @property
    def attribute(self) -> str:
        """The name in Python."""
        return snake_case(self.name)

    @property
    def default_value(self) -> Any:
        """The default of the schema, else the zero value of the type."""
        if self.is_packed or self.type == "bytes":
            return b""
        if self.is_array:
            return []
        if self.default == "null":
            return None
        if self.type == "string":
            return self.default or ""
        if self.type == "uuid":
            return bytes(16)
        return self.default == "true" if self.type == "bool" else int(self.default or 0)


@dataclass(frozen=True)
class Struct:
    """A sequence of fields, for which there is one class."""

    name: str
    fields: tuple[Field, ...]


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
    def module(self) -> str:
        """The name of the module of `protocol.messages` that has the message."""
        suffix = "" if self.type == "header" else "(Request|Response|Key|Value)$"
        return snake_case(re.sub(suffix, "", self.name))


def snake_case(name: str) -> str:
    """Convert a schema's name to a Python name: ``ZkMigrationReady`` to ``zk_migration_ready``."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()


def read_schema(path: Path) -> dict[str, Any]:
    """Read a schema file as JSON. Comments fill whole lines."""
    lines = path.read_text("utf-8").splitlines()
    text = "\n".join(line for line in lines if not line.lstrip().startswith("//"))
    schema: dict[str, Any] = json.loads(text)
    return schema


@cache
def all_messages() -> list[Message]:
    return [parse_message(read_schema(path)) for path in sorted(SCHEMAS.rglob("*.json"))]


def parse_message(schema: dict[str, Any]) -> Message:
    versions = Versions.parse(schema["validVersions"])
    flexible = Versions.parse(schema["flexibleVersions"], versions.last)
    fields = tuple(_parse_field(field, versions.last, flexible) for field in schema["fields"])
    return Message(schema["type"], schema.get("apiKey"), versions, flexible, Struct(schema["name"], fields))


def _parse_field(schema: dict[str, Any], last: int, flexible: Versions) -> Field:
    known = {"name", "type", "versions", "nullableVersions", "flexibleVersions", "taggedVersions", "tag"}
    known |= {"default", "ignorable", "about", "fields", "packed"}
    if schema.keys() - known:
        raise KeyError(f"{schema['name']}: {sorted(schema.keys() - known)}")
    type_name = "bytes" if schema["type"] == "records" else schema["type"].removeprefix("[]")
    struct = None
    if "fields" in schema:
        struct = Struct(type_name, tuple(_parse_field(field, last, flexible) for field in schema["fields"]))
    # A field of a flexible version may keep the older encoding, as the client id of a request header does.
    if "flexibleVersions" in schema:
        flexible = Versions.parse(schema["flexibleVersions"], last)
    return Field(
        name=schema["name"],
        type=type_name,
        is_array=schema["type"].startswith("[]"),
        struct=struct,
        is_packed=schema.get("packed", False),
        versions=Versions.parse(schema["versions"], last),
        nullable=Versions.parse(schema.get("nullableVersions", "none"), last),
        flexible=flexible,
        tag=schema.get("tag"),
        default=schema.get("default"),
        is_ignorable=schema.get("ignorable", False),
    )
