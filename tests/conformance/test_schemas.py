"""Compare the message schemas with the classes that Kafka generated from its own schemas.

Kafka's jars do not contain the schema files, but each generated class describes its wire format. The
description has the fields of each version in order, with types and tags, and the defaults of a new object.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.kafka import KafkaJars
from tests.schemas.parser import (
    BROKER_SCHEMAS,
    SCHEMAS,
    Field,
    Message,
    Struct,
    parse_message,
    read_schema,
)

pytestmark = pytest.mark.broker

# For these schemas, Kafka's additional tagged fields are ignored, and defaults are not compared.
BROKER_SCHEMA_FILES = set(BROKER_SCHEMAS.glob("*.json"))
MESSAGES = {path: parse_message(read_schema(path)) for path in sorted(SCHEMAS.rglob("*.json"))}
# Tag numbers from this number on belong to this project. Kafka preserves them as unknown tagged fields.
OWN_TAGS_FROM = 1000
PRIMITIVES = {
    "bool": "BOOLEAN",
    "int8": "INT8",
    "int16": "INT16",
    "int32": "INT32",
    "int64": "INT64",
    "uuid": "UUID",
}
# The initial value of a field without a default, in Java notation.
ZEROS = {"bool": "false", "int8": "0", "int16": "0", "int32": "0", "int64": "0", "string": ""}

Json = dict[str, Any]


@pytest.fixture(scope="module")
def kafka_classes(newest_jars: KafkaJars) -> Json:
    """Return the description of Kafka's class for each schema, by schema name."""
    names = {message.name: class_name(message) for message in MESSAGES.values()}
    done = newest_jars.run("MessageSchemas", *names.values())
    assert done.returncode == 0, done.stderr
    # Kafka encodes a RECORDS field like a BYTES field.
    described = json.loads(done.stdout.replace("RECORDS", "BYTES"))
    return {name: described[java_class] for name, java_class in names.items()}


def class_name(message: Message) -> str:
    if message.type.startswith("coordinator-"):
        return f"org.apache.kafka.coordinator.share.generated.{message.name}"
    return f"org.apache.kafka.common.message.{message.name}Data"


def all_versions(message: Message) -> range:
    return range(message.versions.first, message.versions.last + 1)


def wire_type(field: Field, version: int, *, flexible: bool) -> Json:
    """Return the type of `field` at `version` in the notation of `MessageSchemas`."""
    described: Json = {}
    nullable = version in field.nullable
    if field.is_array:
        described = {"array": "CompactArrayOf" if flexible else "ArrayOf", "nullable": nullable}
        nullable = False
    if field.struct is not None:
        return {**described, "struct": describe_struct(field.struct, version, flexible=flexible)}
    if field.type in PRIMITIVES:
        return {**described, "type": PRIMITIVES[field.type]}
    compact = version in field.flexible
    return {
        **described,
        "type": ("COMPACT_" if compact else "") + ("NULLABLE_" if nullable else "") + field.type.upper(),
    }


def describe_struct(struct: Struct, version: int, *, flexible: bool) -> Json:
    plain, tagged = [], []
    for field in struct.fields:
        if version not in field.versions or (field.tag or 0) >= OWN_TAGS_FROM:
            continue
        described = {"name": field.attribute, **wire_type(field, version, flexible=flexible)}
        if field.tag is not None:
            tagged.append({**described, "tag": field.tag})
        else:
            plain.append(described)
    return {"flexible": flexible, "fields": [*plain, *sorted(tagged, key=lambda field: int(field["tag"]))]}


def struct_defaults(struct: Struct, name: str = "") -> dict[str, dict[str, str]]:
    """Return the defaults of fields with a simple type, by struct name; the message has the name ""."""
    own: dict[str, str] = {}
    found = {name: own}
    for field in struct.fields:
        if field.struct is not None:
            found |= struct_defaults(field.struct, field.type)
        elif field.type in ZEROS and not field.is_array and (field.tag or 0) < OWN_TAGS_FROM:
            java_name = field.name[0].lower() + field.name[1:]
            own[java_name] = ZEROS[field.type] if field.default is None else str(field.default)
    return found


@pytest.mark.parametrize("path", MESSAGES, ids=lambda path: path.stem)
def test_every_version_has_the_fields_of_kafkas_class(kafka_classes: Json, path: Path) -> None:
    message = MESSAGES[path]
    ours = {
        str(version): describe_struct(message.body, version, flexible=version in message.flexible)
        for version in all_versions(message)
    }
    known = kafka_classes[message.name]["versions"]
    if path in BROKER_SCHEMA_FILES:
        known = drop_tagged_fields(known)
    assert ours == {version: known.get(version) for version in ours}


def drop_tagged_fields(known: Any) -> Any:
    """Return a description of Kafka's class without tagged fields."""
    if isinstance(known, dict):
        return {name: drop_tagged_fields(value) for name, value in known.items()}
    if isinstance(known, list):
        return [drop_tagged_fields(field) for field in known if "tag" not in field]
    return known


@pytest.mark.parametrize("path", sorted(MESSAGES.keys() - BROKER_SCHEMA_FILES), ids=lambda path: path.stem)
def test_every_field_has_the_default_of_kafkas_class(kafka_classes: Json, path: Path) -> None:
    known = kafka_classes[MESSAGES[path].name]["defaults"]
    ours = struct_defaults(MESSAGES[path].body)
    assert ours == {
        name: {field: known.get(name, {}).get(field) for field in fields} for name, fields in ours.items()
    }


def test_versions_that_only_kafka_supports_are_listed(kafka_classes: Json) -> None:
    ours = {
        message.name: set(map(str, all_versions(message)))
        for path, message in MESSAGES.items()
        if path not in BROKER_SCHEMA_FILES
    }
    unsupported = {name: set(kafka_classes[name]["versions"]) - versions for name, versions in ours.items()}
    assert {name: versions for name, versions in unsupported.items() if versions} == {
        # The response has error 35 and the supported versions. Then the broker retries with one of these.
        "ApiVersionsRequest": {"5"},
        "ApiVersionsResponse": {"5"},
    }
