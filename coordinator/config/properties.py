"""Parse Java's `.properties` syntax as used in Kafka's files: comments, continued lines, escapes.

There are two intended differences from java.util.Properties. Files are UTF-8; Java reads streams as Latin-1,
which few users expect. Duplicate names are an error; Java silently takes the last value, so an operator who
edits the first value sees no effect.
"""

from collections.abc import Iterator
from typing import NamedTuple

_BLANK = " \t\f"
_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


class FileProperty(NamedTuple):
    """One entry of a file and the number of its first line, counted from 1."""

    name: str
    value: str
    line: int


def parse_properties(text: str) -> list[FileProperty]:
    """Parse the text of a `.properties` file; return its entries in file order.

    Raises ValueError with a message that begins with the line number.
    """
    found: dict[str, FileProperty] = {}
    for line, logical in _split_logical_lines(text):
        name, value = _split_entry(logical)
        try:
            entry = FileProperty(_unescape(name), _unescape(value), line)
        except ValueError as error:
            raise ValueError(f"line {line}: {error}") from None
        if entry.name in found:
            raise ValueError(f"line {line}: {entry.name} was already given on line {found[entry.name].line}")
        found[entry.name] = entry
    return list(found.values())


def _split_logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield (number of the first line, text) of each logical line, without blank lines and comments."""
    begun, parts = 0, list[str]()
    # splitlines() also splits at form feeds and Unicode line separators, which Java does not.
    for number, natural in enumerate(text.replace("\r\n", "\n").replace("\r", "\n").split("\n"), 1):
        stripped = natural.lstrip(_BLANK)
        if not parts:
            if not stripped or stripped[0] in "#!":
                continue
            begun = number
        # After an odd number of backslashes at the end, the next line continues this one.
        backslashes = len(stripped) - len(stripped.rstrip("\\"))
        if backslashes % 2:
            parts.append(stripped[:-1])
            continue
        yield begun, "".join([*parts, stripped])
        parts = []
    if parts:
        yield begun, "".join(parts)


def _split_entry(logical: str) -> tuple[str, str]:
    """Split at the first unescaped `=`, `:` or blank; blanks around one `=` or `:` are removed."""
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
    # Java's escapes are UTF-16 code units: two of them may form one character.
    return "".join(out).encode("utf-16", "surrogatepass").decode("utf-16", "replace")
