"""Text from outside, such as a group id, made fit for one line of a terminal or a log."""

import json
import re

_MAY_NOT_SHOW = re.compile(r"[^\n -~]")


def written_out(text: str) -> str:
    """Write out the characters that would not show, or that a terminal would obey; line ends are such."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def written_in_json(text: str) -> str:
    """Escape in JSON, which may have lines, what would not show; it stays the same value."""
    return _MAY_NOT_SHOW.sub(
        lambda found: found[0] if found[0].isprintable() else json.dumps(found[0])[1:-1], text
    )
