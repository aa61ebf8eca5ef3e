"""Escape text from outside, such as a group id, for one line of a terminal or a log."""

import json
import re

_UNPRINTABLE = re.compile(r"[^\n -~]")


def escape_unprintable(text: str) -> str:
    """Escape invisible and control characters, including line breaks."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def escape_json_unprintable(text: str, encoding: str = "utf-8") -> str:
    """Escape characters that are invisible or cannot be encoded in JSON text, preserving its value."""

    def escape_character(found: re.Match[str]) -> str:
        char = found[0]
        shows = char.isprintable() and char.encode(encoding, "ignore")
        return char if shows else json.dumps(char)[1:-1]

    return _UNPRINTABLE.sub(escape_character, text)
