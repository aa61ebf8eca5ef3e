"""Compare the message schemas with the classes that Kafka generated from its own schemas.

Kafka's jars do not contain the schema files, but each generated class describes its wire format. The
description has the fields of each version in order, with types and tags, and the defaults of a new object.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.kafka import KafkaJars
from tests.schemas.parser import BROKER_SCHEMAS, SCHEMAS, read_schema, snake_case

pytestmark = pytest.mark.broker

# For these schemas, Kafka's additional tagged fields are ignored, and defaults are not compared.
OF_BROKERS = set(BROKER_SCHEMAS.glob("*.json"))
PATHS = sorted(SCHEMAS.rglob("*.json"))
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
    names = {read_schema(path)["name"]: class_name(read_schema(path)) for path in PATHS}
    done = newest_jars.run("MessageSchemas", *names.values())
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    return {name: said[java_class] for name, java_class in names.items()}


def class_name(schema: Json) -> str:
    if schema["type"].startswith("coordinator-"):
        return f"org.apache.kafka.coordinator.share.generated.{schema['name']}"
    return f"org.apache.kafka.common.message.{schema['name']}Data"


def is_version_in(versions: str, version: int) -> bool:
    """Return whether `version` is in a range such as "2", "0-3", "1+" or "none"."""
    if versions == "none":
        return False
    first, separator, last = versions.partition("-")
    if versions.endswith("+"):
        return version >= int(versions[:-1])
    return int(first) <= version <= int(last if separator else first)


def all_versions(schema: Json) -> range:
    first, _, last = schema["validVersions"].partition("-")
    return range(int(first), int(last or first) + 1)


def wire_type(field: Json, version: int, *, flexible: bool) -> Json:
    """Return the type of `field` at `version` in the notation of `MessageSchemas`."""
    name = field["type"]
    described: Json = {}
    nullable = is_version_in(field.get("nullableVersions", "none"), version)
    if name.startswith("[]"):
        name = name[2:]
        described = {"array": "CompactArrayOf" if flexible else "ArrayOf", "nullable": nullable}
        nullable = False
    if "fields" in field:
        return {**described, "struct": describe_struct(field["fields"], version, flexible=flexible)}
    if name in PRIMITIVES:
        return {**described, "type": PRIMITIVES[name]}
    compact = flexible and field.get("flexibleVersions") != "none"
    return {
        **described,
        "type": ("COMPACT_" if compact else "") + ("NULLABLE_" if nullable else "") + name.upper(),
    }


def describe_struct(fields: list[Json], version: int, *, flexible: bool) -> Json:
    plain, tagged = [], []
    for field in fields:
        if not is_version_in(field["versions"], version) or field.get("tag", 0) >= OWN_TAGS_FROM:
            continue
        described = {"name": snake_case(field["name"]), **wire_type(field, version, flexible=flexible)}
        if is_version_in(field.get("taggedVersions", "none"), version):
            tagged.append({**described, "tag": field["tag"]})
        else:
            plain.append(described)
    return {"flexible": flexible, "fields": [*plain, *sorted(tagged, key=lambda field: int(field["tag"]))]}


def struct_defaults(fields: list[Json], name: str = "") -> dict[str, dict[str, str]]:
    """Return the defaults of fields with a simple type, by struct name; the message has the name ""."""
    own: dict[str, str] = {}
    found = {name: own}
    for field in fields:
        if "fields" in field:
            found |= struct_defaults(field["fields"], field["type"].removeprefix("[]"))
        elif field["type"] in ZEROS and field.get("tag", 0) < OWN_TAGS_FROM:
            java_name = field["name"][0].lower() + field["name"][1:]
            own[java_name] = str(field.get("default", ZEROS[field["type"]]))
    return found


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_every_version_has_the_fields_of_kafkas_class(kafka_classes: Json, path: Path) -> None:
    schema = read_schema(path)
    ours = {
        str(version): describe_struct(
            schema["fields"], version, flexible=is_version_in(schema["flexibleVersions"], version)
        )
        for version in all_versions(schema)
    }
    known = kafka_classes[schema["name"]]["versions"]
    if path in OF_BROKERS:
        known = drop_tagged_fields(known)
    assert ours == {version: known.get(version) for version in ours}


def drop_tagged_fields(known: Any) -> Any:
    """Return a description of Kafka's class without tagged fields."""
    if isinstance(known, dict):
        return {name: drop_tagged_fields(value) for name, value in known.items()}
    if isinstance(known, list):
        return [drop_tagged_fields(field) for field in known if "tag" not in field]
    return known


@pytest.mark.parametrize(
    "path", [path for path in PATHS if path not in OF_BROKERS], ids=lambda path: path.stem
)
def test_every_field_has_the_default_of_kafkas_class(kafka_classes: Json, path: Path) -> None:
    schema = read_schema(path)
    known = kafka_classes[schema["name"]]["defaults"]
    ours = struct_defaults(schema["fields"])
    assert ours == {
        name: {field: known.get(name, {}).get(field) for field in fields} for name, fields in ours.items()
    }


def test_unsupported_versions_of_kafka_are_known(kafka_classes: Json) -> None:
    ours = {
        read_schema(path)["name"]: {str(version) for version in all_versions(read_schema(path))}
        for path in PATHS
        if path not in OF_BROKERS
    }
    unspoken = {name: set(kafka_classes[name]["versions"]) - versions for name, versions in ours.items()}
    assert {name: versions for name, versions in unspoken.items() if versions} == {
        # The response has error 35 and the supported versions. Then the broker retries with one of these.
        "ApiVersionsRequest": {"5"},
        "ApiVersionsResponse": {"5"},
    }
