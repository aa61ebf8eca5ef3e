"""Build Python source code, formatted as ``ruff format`` would."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from struct import calcsize

LINE_MAX = 110

_INDENT = "    "


class Source:
    """The lines of one generated module, and the imports and constants that its functions need.

    The lines at the top of the module are known only after all functions are written. They are the imports,
    and one precompiled ``struct.Struct`` for each sequence of fixed-size fields.
    """

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.imports: dict[str, set[str]] = {}
        self.packers: set[str] = set()
        self.unpackers: set[str] = set()
        self._depth = 0

    def add(self, text: str = "") -> None:
        """Add a line at the current indentation."""
        self.lines.append(_INDENT * self._depth + text if text else "")

    @contextmanager
    def block(self, head: str) -> Iterator[None]:
        """Add ``head``, and indent the lines that are added in the ``with`` block."""
        self.add(head)
        self._depth += 1
        yield
        self._depth -= 1

    @contextmanager
    def function(self, name: str, parameters: Sequence[str], returned: str) -> Iterator[None]:
        """Add a function's signature, and indent the lines that are added in the ``with`` block."""
        self.add()
        self.add()
        self.add_list(f"def {name}(", parameters, f") -> {returned}:")
        self._depth += 1
        yield
        self._depth -= 1

    def add_list(self, head: str, items: Sequence[str], tail: str) -> None:
        """Add ``head``, items and ``tail`` on one line; if it is too long, one line for each item."""
        line = head + ", ".join(items) + tail
        if self.fits(line):
            self.add(line)
            return
        with self.block(head):
            for item in items:
                self.add(f"{item},")
        self.add(tail)

    def add_assignment(self, targets: str, value: str) -> None:
        """Add ``targets = value``, where the value is a call; if it is too long, break it as ruff does."""
        line = f"{targets} = {value}"
        function, _, arguments = value.partition("(")
        if self.fits(line):
            self.add(line)
        elif self.fits(f"{targets} = {function}("):
            with self.block(f"{targets} = {function}("):
                self.add(arguments.removesuffix(")"))
            self.add(")")
        elif self.fits(f"{targets} = ("):
            with self.block(f"{targets} = ("):
                self.add(value)
            self.add(")")
        else:
            with self.block("("):
                for target in targets.split(", "):
                    self.add(f"{target},")
            self.add(f") = {value}")

    def add_comprehension(self, head: str, element: str, loop: str) -> None:
        """Add ``head`` and a list comprehension; if the line is too long, break it as ruff does."""
        line = f"{head}[{element} {loop}]"
        if self.fits(line):
            self.add(line)
            return
        with self.block(f"{head}["):
            if self.fits(f"{element} {loop}"):
                self.add(f"{element} {loop}")
            else:
                function, _, arguments = element.partition("(")
                self.add_list(f"{function}(", arguments.removesuffix(")").split(", "), ")")
                self.add(loop)
        self.add("]")

    def fits(self, text: str) -> bool:
        """Return whether a line at the current indentation has at most LINE_MAX characters."""
        return len(_INDENT * self._depth + text) <= LINE_MAX

    def use(self, module: str, name: str) -> str:
        """Import a name from a module; return the name."""
        self.imports.setdefault(module, set()).add(name)
        return name

    def packer(self, formats: str) -> str:
        """Return the name of the generated function that packs a sequence of fixed-size fields."""
        self.packers.add(formats)
        return f"_pack_{_format_identifier(formats)}"

    def unpacker(self, formats: str) -> str:
        """Return the name of the generated function that unpacks a sequence of fixed-size fields."""
        self.unpackers.add(formats)
        return f"_unpack_{_format_identifier(formats)}"

    def preamble(self) -> list[str]:
        """Return the imports and the precompiled structs that the lines so far need."""
        ours = sorted(module for module in self.imports if module != "msgspec")
        return [
            "from struct import Struct as Fields",
            "",
            *self._import_lines("msgspec"),
            "",
            *(line for module in ours for line in self._import_lines(module)),
            "",
            *(
                f'_unpack_{_format_identifier(run)} = Fields(">{run}").unpack_from'
                for run in sorted(self.unpackers)
            ),
            *(f'_pack_{_format_identifier(run)} = Fields(">{run}").pack' for run in sorted(self.packers)),
        ]

    def _import_lines(self, module: str) -> list[str]:
        names = import_order(self.imports[module])
        line = f"from {module} import {', '.join(names)}"
        if len(line) <= LINE_MAX:
            return [line]
        return [f"from {module} import (", *(f"{_INDENT}{name}," for name in names), ")"]


def import_order(names: set[str]) -> list[str]:
    """Sort imported names as ruff does: constants, classes, functions."""
    return sorted(names, key=lambda name: (not name.isupper(), not name[0].isupper(), name))


def packed_size(formats: str) -> int:
    """Return the size in bytes of a sequence of fixed-size fields."""
    return calcsize(f">{formats}")


def _format_identifier(formats: str) -> str:
    return formats.replace("?", "bool")
