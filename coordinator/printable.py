"""Text from outside, such as a group id, made fit for one line of a terminal or a log."""

import json
import re

_UNPRINTABLE = re.compile(r"[^\n -~]")


def escape_unprintable(text: str) -> str:
    """Write out the characters that would not show, or that a terminal would obey; line ends are such."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def escape_json_unprintable(text: str, encoding: str = "utf-8") -> str:
    """Escape in JSON, which may have lines, what would not show or cannot be encoded: the same value."""

    def shown(found: re.Match[str]) -> str:
        char = found[0]
        shows = char.isprintable() and char.encode(encoding, "ignore")
        return char if shows else json.dumps(char)[1:-1]

    return _UNPRINTABLE.sub(shown, text)
