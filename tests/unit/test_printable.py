"""Escaping of text from clients: one line without control characters; JSON keeps its value."""

import json

import pytest

from coordinator.printable import escape_json_unprintable, escape_unprintable


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("User:CN=a\\,b", "User:CN=a\\,b"),
        ("a\nINFO b", r"a\nINFO b"),
        ("\x1b[2J", r"\x1b[2J"),
        ("right\u202eleft", r"right\u202eleft"),
        ("orders\u3164", r"orders\u3164"),
        ("日本", "日本"),
    ],
)
def test_unprintable_characters_are_escaped(text: str, written: str) -> None:
    assert escape_unprintable(text) == written


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("\x1b\x9b\x7f", r"\u001b\u009b\u007f"),
        ("right\u202eleft", r"right\u202eleft"),
        ("\U000e0061", r"\udb40\udc61"),
        ("\u2800", r"\u2800"),
        ("日本 😀", "日本 😀"),
    ],
)
def test_unprintable_characters_in_json_keep_the_value(text: str, written: str) -> None:
    value = {"group": text, "more": [1]}
    line = escape_json_unprintable(json.dumps(value, ensure_ascii=False))
    assert f'"{written}"' in line
    assert line.isprintable()
    assert json.loads(line) == value


@pytest.mark.parametrize(
    ("encoding", "written"),
    [("utf-8", "é日😀"), ("latin-1", r"é\u65e5\ud83d\ude00"), ("ascii", r"\u00e9\u65e5\ud83d\ude00")],
)
def test_json_is_escaped_for_the_output_encoding(encoding: str, written: str) -> None:
    assert escape_json_unprintable('"é日😀"', encoding) == f'"{written}"'
    assert json.loads(f'"{written}"') == "é日😀"


def test_json_line_breaks_are_kept() -> None:
    text = json.dumps({"a": "b\nc"}, indent=2)
    assert escape_json_unprintable(text) == text
