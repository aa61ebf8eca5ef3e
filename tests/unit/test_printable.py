"""Text from outside is one line, and nothing in it is obeyed; as JSON it is still the same text."""

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
        ("日本", "日本"),
    ],
)
def test_what_does_not_show_is_written_out(text: str, written: str) -> None:
    assert escape_unprintable(text) == written


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("\x1b\x9b\x7f", r"\u001b\u009b\u007f"),
        ("right\u202eleft", r"right\u202eleft"),
        ("\U000e0061", r"\udb40\udc61"),
        ("日本 😀", "日本 😀"),
    ],
)
def test_what_does_not_show_is_written_in_json_as_the_same_value(text: str, written: str) -> None:
    value = {"group": text, "more": [1]}
    line = escape_json_unprintable(json.dumps(value, ensure_ascii=False))
    assert f'"{written}"' in line
    assert line.isprintable()
    assert json.loads(line) == value


@pytest.mark.parametrize(
    ("encoding", "written"),
    [("utf-8", "é日😀"), ("latin-1", r"é\u65e5\ud83d\ude00"), ("ascii", r"\u00e9\u65e5\ud83d\ude00")],
)
def test_json_is_read_back_from_any_encoding(encoding: str, written: str) -> None:
    assert escape_json_unprintable('"é日😀"', encoding) == f'"{written}"'
    assert json.loads(f'"{written}"') == "é日😀"


def test_json_keeps_its_own_line_ends() -> None:
    text = json.dumps({"a": "b\nc"}, indent=2)
    assert escape_json_unprintable(text) == text
