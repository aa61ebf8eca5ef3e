"""Escape text from outside, such as a group id, for one line of a terminal or a log."""

import json
import re

_UNPRINTABLE = re.compile(r"[^\n -~]")
# Characters that Unicode declares ignorable, and the empty Braille pattern. Python calls them printable.
_INVISIBLE = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]"
)


def is_visible(text: str) -> bool:
    """Return whether a text has neither control characters nor invisible characters except spaces."""
    return text.isprintable() and (text.isascii() or not _INVISIBLE.search(text))


def escape_unprintable(text: str) -> str:
    """Escape invisible and control characters, including line breaks."""
    if is_visible(text):
        return text
    return "".join(char if is_visible(char) else char.encode("unicode_escape").decode() for char in text)


def escape_json_unprintable(text: str, encoding: str = "utf-8") -> str:
    """Escape characters that are invisible or cannot be encoded in JSON text, preserving its value."""

    def escape_character(found: re.Match[str]) -> str:
        char = found[0]
        shows = is_visible(char) and char.encode(encoding, "ignore")
        return char if shows else json.dumps(char)[1:-1]

    return _UNPRINTABLE.sub(escape_character, text)
