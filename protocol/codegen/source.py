"""Python source under construction, in the shape that ``ruff format`` gives it."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from struct import calcsize

LINE_MAX = 110

_INDENT = "    "


class Source:
    """The lines of one module, and what its functions need at module level.

    Functions ask for names while they are written, so the lines at the top of the module (imports, and
    one precompiled ``struct.Struct`` for each run of fixed-size fields) are known only at the end.
    """

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.imports: dict[str, set[str]] = {}
        self.packers: set[str] = set()
        self.unpackers: set[str] = set()
        self._depth = 0

    def add(self, text: str = "") -> None:
        """Add a line at the current depth; a later indentation of its own is kept."""
        self.lines.append(_INDENT * self._depth + text if text else "")

    @contextmanager
    def block(self, head: str) -> Iterator[None]:
        """Add ``head``, and indent what is added inside."""
        self.add(head)
        self._depth += 1
        yield
        self._depth -= 1

    @contextmanager
    def function(self, name: str, parameters: Sequence[str], returned: str) -> Iterator[None]:
        """Add the head of a function, and indent what is added inside."""
        self.add()
        self.add()
        self.add_list(f"def {name}(", parameters, f") -> {returned}:")
        self._depth += 1
        yield
        self._depth -= 1

    def add_list(self, head: str, items: Sequence[str], tail: str) -> None:
        """Add ``head`` + items + ``tail`` on one line, or on one line for each item if that is too long."""
        line = head + ", ".join(items) + tail
        if self.fits(line):
            self.add(line)
            return
        with self.block(head):
            for item in items:
                self.add(f"{item},")
        self.add(tail)

    def add_assignment(self, targets: str, value: str) -> None:
        """Add ``targets = value``, where the value is a call, broken where ruff does if it is too long."""
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
        """Add ``head`` + a list comprehension, on three lines more if it is too long for one."""
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
        """Tell whether a line at the current depth is short enough."""
        return len(_INDENT * self._depth + text) <= LINE_MAX

    def use(self, module: str, name: str) -> str:
        """Import a name from a module; return the name."""
        self.imports.setdefault(module, set()).add(name)
        return name

    def packer(self, formats: str) -> str:
        """Return the name of the function that packs a run of fixed-size fields."""
        self.packers.add(formats)
        return f"_pack_{_identifier(formats)}"

    def unpacker(self, formats: str) -> str:
        """Return the name of the function that unpacks a run of fixed-size fields at a position."""
        self.unpackers.add(formats)
        return f"_unpack_{_identifier(formats)}"

    def preamble(self) -> list[str]:
        """Return the imports and the packers that the lines so far need."""
        ours = sorted(module for module in self.imports if module != "msgspec")
        return [
            "from struct import Struct as Fields",
            "",
            *self._import("msgspec"),
            "",
            *(line for module in ours for line in self._import(module)),
            "",
            *(f'_unpack_{_identifier(run)} = Fields(">{run}").unpack_from' for run in sorted(self.unpackers)),
            *(f'_pack_{_identifier(run)} = Fields(">{run}").pack' for run in sorted(self.packers)),
        ]

    def _import(self, module: str) -> list[str]:
        names = import_order(self.imports[module])
        line = f"from {module} import {', '.join(names)}"
        if len(line) <= LINE_MAX:
            return [line]
        return [f"from {module} import (", *(f"{_INDENT}{name}," for name in names), ")"]


def import_order(names: set[str]) -> list[str]:
    """Sort imported names as ruff does: constants, classes, functions."""
    return sorted(names, key=lambda name: (not name.isupper(), not name[0].isupper(), name))


def size_of(formats: str) -> int:
    """Return the bytes of a run of fixed-size fields."""
    return calcsize(f">{formats}")


def _identifier(formats: str) -> str:
    return formats.replace("?", "bool")
