"""Java's `.properties` syntax, as far as Kafka's own files use it: comments, continued lines, escapes.

Two differences from java.util.Properties, both on purpose. A file is UTF-8 (Java reads Latin-1 from a
stream, and nobody expects that). A name given twice is an error (Java takes the last one in silence, and
the operator who edited the first one never learns why nothing changed).
"""

from collections.abc import Iterator
from typing import NamedTuple

_BLANK = " \t\f"
_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


class Property(NamedTuple):
    """One entry of a file and the line, from 1, on which it begins."""

    name: str
    value: str
    line: int


def parse_properties(text: str) -> list[Property]:
    """Parse the whole text of a `.properties` file, in file order.

    Raises ValueError with a sentence that begins with the line number.
    """
    found: dict[str, Property] = {}
    for line, logical in _logical_lines(text):
        name, value = _split(logical)
        try:
            entry = Property(_unescape(name), _unescape(value), line)
        except ValueError as error:
            raise ValueError(f"line {line}: {error}") from None
        if entry.name in found:
            raise ValueError(f"line {line}: {entry.name} was already given on line {found[entry.name].line}")
        found[entry.name] = entry
    return list(found.values())


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Join continued lines, drop blanks and comments: (number of the first line, joined text)."""
    begun, parts = 0, list[str]()
    # Not splitlines(): it also splits at form feeds and Unicode line ends, which Java does not.
    for number, natural in enumerate(text.replace("\r\n", "\n").replace("\r", "\n").split("\n"), 1):
        stripped = natural.lstrip(_BLANK)
        if not parts:
            if not stripped or stripped[0] in "#!":
                continue
            begun = number
        # An odd number of backslashes at the end: the last one escapes the line's end.
        backslashes = len(stripped) - len(stripped.rstrip("\\"))
        if backslashes % 2:
            parts.append(stripped[:-1])
            continue
        yield begun, "".join([*parts, stripped])
        parts = []
    if parts:
        yield begun, "".join(parts)


def _split(logical: str) -> tuple[str, str]:
    """Split at the first unescaped `=`, `:` or blank; blanks around one `=` or `:` belong to neither side."""
    end = 0
    while end < len(logical) and logical[end] not in "=:" + _BLANK:
        end += 2 if logical[end] == "\\" else 1
    name, rest = logical[:end], logical[end:].lstrip(_BLANK)
    if rest[:1] in ("=", ":"):
        rest = rest[1:].lstrip(_BLANK)
    return name, rest


def _unescape(text: str) -> str:
    if "\\" not in text:
        return text
    out, at = list[str](), 0
    while at < len(text):
        char = text[at]
        at += 1
        if char == "\\" and at < len(text):
            char = text[at]
            at += 1
            if char == "u":
                digits = text[at : at + 4]
                if len(digits) < 4 or any(digit not in "0123456789abcdefABCDEF" for digit in digits):
                    raise ValueError("a \\u is not followed by four hexadecimal digits")
                char = chr(int(digits, 16))
                at += 4
            else:
                char = _ESCAPES.get(char, char)
        out.append(char)
    # Java's escapes are UTF-16: two of them may be the halves of one character.
    return "".join(out).encode("utf-16", "surrogatepass").decode("utf-16", "replace")
