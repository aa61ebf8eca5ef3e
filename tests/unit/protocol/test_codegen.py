"""The message generator: the committed messages are current, and unsupported schemas are refused."""

import importlib.util
import io
import json
from pathlib import Path
from typing import Any

import pytest

from protocol.codegen.__main__ import main
from protocol.codegen.module import module_name, write_module
from protocol.codegen.package import MESSAGES, write_package
from protocol.codegen.schema import SchemaError, Versions, parse_message, read_messages, snake_case
from protocol.codegen.source import Source
from protocol.errors import EncodeError


def run_generator(*arguments: str, directory: Path) -> tuple[int, list[str]]:
    """Run the generator on a directory; return its exit status and its output lines."""
    out = io.StringIO()
    return main(arguments, directory, out), out.getvalue().splitlines()


def test_committed_messages_equal_the_generated_ones() -> None:
    assert run_generator("--check", directory=MESSAGES) == (0, [])


def test_check_names_differences_and_writes_nothing(tmp_path: Path) -> None:
    run_generator(directory=tmp_path)
    (tmp_path / "share_update.py").write_text("edited by hand", encoding="utf-8")
    (tmp_path / "request_header.py").unlink()
    (tmp_path / "left_over.py").write_text("", encoding="utf-8")
    changed = ["left_over.py", "request_header.py", "share_update.py"]
    assert run_generator("--check", directory=tmp_path) == (
        1,
        [f"{tmp_path.name}/{name}" for name in changed],
    )
    assert (tmp_path / "share_update.py").read_text(encoding="utf-8") == "edited by hand"


def test_generator_replaces_changed_files_and_removes_stale_ones(tmp_path: Path) -> None:
    assert run_generator(directory=tmp_path)[0] == 0
    (tmp_path / "left_over.py").write_text("", encoding="utf-8")
    (tmp_path / "share_update.py").write_text("edited by hand", encoding="utf-8")
    assert run_generator(directory=tmp_path) == (
        0,
        [f"{tmp_path.name}/left_over.py", f"{tmp_path.name}/share_update.py"],
    )
    written = {path.name: path.read_text(encoding="utf-8") for path in tmp_path.iterdir()}
    assert written == write_package()


def schema(field: dict[str, Any] | None = None, **changes: Any) -> str:
    """Return a schema with one field; `field` and `changes` override attributes."""
    one = {"name": "Count", "type": "int32", "versions": "0+"} | (field or {})
    small = {"type": "header", "name": "Small", "validVersions": "0-1", "flexibleVersions": "1+"}
    return json.dumps(small | {"fields": [one]} | changes)


def test_schema_is_parsed() -> None:
    message = parse_message("// A comment.\n" + schema({"default": "-1", "about": "How many."}))
    (field,) = message.body.fields
    assert (message.name, message.type, module_name(message)) == ("Small", "header", "small")
    assert (field.attribute, field.type, field.default_code, field.about) == (
        "count",
        "int32",
        "-1",
        "How many.",
    )
    assert field.versions == Versions(0, 1)
    assert message.layouts() == [Versions(0, 0), Versions(1, 1)]


def test_equal_versions_share_one_layout() -> None:
    message = parse_message(schema({"versions": "5+"}, validVersions="0-6", flexibleVersions="3+"))
    assert message.layouts() == [Versions(0, 2), Versions(3, 4), Versions(5, 6)]


@pytest.mark.parametrize(
    ("text", "versions"),
    [("0", Versions(0, 0)), ("1-3", Versions(1, 3)), ("2+", Versions(2, 4)), ("none", Versions(0, -1))],
)
def test_version_ranges_are_parsed(text: str, versions: Versions) -> None:
    assert Versions.parse(text, Versions(0, 4)) == versions


@pytest.mark.parametrize("text", ["", "x", "1-", "-1", "1+2"])
def test_invalid_version_range_is_refused(text: str) -> None:
    with pytest.raises(SchemaError):
        Versions.parse(text, Versions(0, 4))


def test_valid_versions_must_have_an_end() -> None:
    with pytest.raises(SchemaError, match="no end"):
        parse_message(schema(validVersions="0+"))


BATCH_FIELDS = [
    {"name": name, "type": kind, "versions": "0+"}
    for name, kind in (("First", "int64"), ("Last", "int64"), ("State", "int8"), ("Count", "int16"))
]


@pytest.mark.parametrize(
    "field",
    [
        pytest.param({"type": "float64"}, id="type"),
        pytest.param({"mapKey": True}, id="unknown attribute"),
        pytest.param({"fields": []}, id="fields of a number"),
        pytest.param({"type": "B", "fields": [], "tag": 0, "taggedVersions": "0+"}, id="tagged struct"),
        pytest.param({"nullableVersions": "0+"}, id="nullable number"),
        pytest.param(
            {"type": "[]string", "nullableVersions": "0+", "tag": 0, "taggedVersions": "0+"},
            id="nullable tagged array",
        ),
        pytest.param({"type": "[]uuid"}, id="array of uuids"),
        pytest.param({"tag": 0}, id="tag without versions"),
        pytest.param({"tag": 0, "taggedVersions": "1+"}, id="tagged in some versions"),
        pytest.param({"type": "[]string", "packed": True}, id="packed without fields"),
        pytest.param({"type": "[]B", "fields": BATCH_FIELDS[1:], "packed": True}, id="packed, other fields"),
    ],
)
def test_unsupported_field_is_refused(field: dict[str, Any]) -> None:
    with pytest.raises(SchemaError):
        parse_message(schema(field))


def test_unsupported_message_is_refused() -> None:
    with pytest.raises(SchemaError):
        parse_message(schema(type="data"))
    legacy_batches = {"type": "[]B", "fields": BATCH_FIELDS, "packed": True}
    with pytest.raises(SchemaError, match="not flexible"):
        write_module([parse_message(schema(legacy_batches))])
    twice = {"type": "[]Small", "fields": BATCH_FIELDS}
    with pytest.raises(SchemaError, match="occurs twice"):
        write_module([parse_message(schema(twice))])


def test_schema_features_that_no_message_uses_are_generated(tmp_path: Path) -> None:
    """A first tag of fixed size in a message that drops unknown tags, and defaults of other types."""
    whole = json.loads(schema({"taggedVersions": "0+", "tag": 7, "default": "0"}, flexibleVersions="0+"))
    whole["fields"] += [
        {"name": "Token", "type": "bytes", "versions": "1+"},
        {"name": "Id", "type": "uuid", "versions": "1+", "ignorable": True},
    ]
    (tmp_path / "small.py").write_text(write_module([parse_message(json.dumps(whole))]), encoding="utf-8")
    spec = importlib.util.spec_from_file_location("small", tmp_path / "small.py")
    assert spec is not None
    assert spec.loader is not None
    small = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(small)

    assert small.Small() == small.Small(0, b"", bytes(16))
    assert small.encode(small.Small(), 0).hex(" ") == "00"
    assert small.encode(small.Small(5), 0).hex(" ") == "01 07 04 00 00 00 05"
    assert small.decode(bytes.fromhex("02 05 01 ff 07 04 00000005"), 0, 0) == (small.Small(5), 10)
    full = small.Small(5, b"t", bytes(range(16)))
    assert small.decode(small.encode(full, 1), 0, 1) == (full, 25)
    with pytest.raises(EncodeError, match="version 0 of Small has no token"):
        small.encode(small.Small(token=b"t"), 0)


def test_error_in_a_schema_names_its_file(tmp_path: Path) -> None:
    (tmp_path / "Small.json").write_text(schema(type="data"), encoding="utf-8")
    with pytest.raises(SchemaError, match=r"Small\.json"):
        read_messages(tmp_path)


@pytest.mark.parametrize(
    ("name", "snake"),
    [("ZkMigrationReady", "zk_migration_ready"), ("Key", "key"), ("SaslHandshake", "sasl_handshake")],
)
def test_name_is_converted_to_snake_case(name: str, snake: str) -> None:
    assert snake_case(name) == snake


def test_long_source_lines_are_broken() -> None:
    source = Source()
    items = [f"item_{number:02}" for number in range(13)]
    source.add_list("call(", items[:2], ")")
    source.add_list("call(", items, ")")
    source.add_assignment("short", "f(a, b)")
    source.add_assignment(", ".join(items[:11]), "function(buf, at)")
    source.add_assignment(", ".join(items[:12]), "function(buf, at)")
    source.add_comprehension("x = ", "f(a)", "for a in b")
    source.add_comprehension("x = ", "f(" + "a" * 60 + ")", "for a in " + "b" * 33)
    source.add_comprehension("x = ", "f(" + "a" * 60 + ")", "for a in " + "b" * 50)
    assert source.lines == [
        "call(item_00, item_01)",
        "call(",
        *(f"    {item}," for item in items),
        ")",
        "short = f(a, b)",
        f"{', '.join(items[:11])} = function(",
        "    buf, at",
        ")",
        f"{', '.join(items[:12])} = (",
        "    function(buf, at)",
        ")",
        "x = [f(a) for a in b]",
        "x = [",
        f"    f({'a' * 60}) for a in {'b' * 33}",
        "]",
        "x = [",
        f"    f({'a' * 60})",
        f"    for a in {'b' * 50}",
        "]",
    ]
