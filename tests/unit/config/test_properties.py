"""Java's `.properties` syntax: the cases of java.util.Properties that occur in Kafka's files."""

import pytest

from coordinator.config.properties import FileProperty, parse_properties


@pytest.mark.parametrize(
    ("text", "name", "value"),
    [
        ("a=b", "a", "b"),
        ("a:b", "a", "b"),
        ("a b", "a", "b"),
        ("a\tb", "a", "b"),
        ("  a = b  ", "a", "b  "),
        ("a : b = c", "a", "b = c"),
        ("a==b", "a", "=b"),
        ("a", "a", ""),
        ("a=", "a", ""),
        (r"a\=b=c", "a=b", "c"),
        (r"a\ b=c", "a b", "c"),
        (r"a=C:\\data", "a", r"C:\data"),
        (r"a=\tb\n", "a", "\tb\n"),
        (r"a=\q", "a", "q"),
        (r"a=\u00e9\uD83D\uDE00", "a", "é😀"),
        ("a=é", "a", "é"),
        ("a=b\\\n   c", "a", "bc"),
        ("a=b\\\n", "a", "b"),
        ("a=b\\\\", "a", "b\\"),
        ("a=b\\\n#c", "a", "b#c"),
        ("a=b # no comment here", "a", "b # no comment here"),
        ("a=b\r", "a", "b"),
    ],
)
def test_property_is_parsed(text: str, name: str, value: str) -> None:
    assert parse_properties(text) == [FileProperty(name, value, 1)]


def test_comments_and_blank_lines_are_ignored() -> None:
    text = "# one\n\n   ! two\r\n \t\na=1\n  # three \\\nb=2\n"
    assert parse_properties(text) == [FileProperty("a", "1", 5), FileProperty("b", "2", 7)]


def test_continued_line_has_the_number_of_its_first_line() -> None:
    assert parse_properties("a=1,\\\n  2,\\\n  3\nb=4") == [
        FileProperty("a", "1,2,3", 1),
        FileProperty("b", "4", 4),
    ]


def test_duplicate_name_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^line 3: a was already given on line 1$"):
        parse_properties("a=1\nb=2\na=1")


@pytest.mark.parametrize("text", [r"a=\u12", r"a=\u12g4", r"a=\u"])
def test_invalid_unicode_escape_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"^line 1: .*four hexadecimal digits") as raised:
        parse_properties(text)
    # The error does not show the invalid text, which may be part of a password.
    assert "12" not in str(raised.value)
