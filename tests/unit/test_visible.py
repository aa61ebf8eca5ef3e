"""Text from outside is one line, and nothing in it is obeyed."""

import pytest

from coordinator.visible import written_out


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
    assert written_out(text) == written
