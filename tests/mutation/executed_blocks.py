"""Record which blocks of the coordinator a test executes, by a marker that is compiled into each block.

A block is a sequence of statements of a function that are executed together, up to the next compound
statement. A marker only stores a byte, so it is faster than a tracer.
"""

import ast
import builtins
import re
from collections.abc import Iterable
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType
from typing import Any

_MARKS = "__executed_blocks__"


class ExecutedBlocks:
    """The numbered blocks of code of some files, and the record of which were executed."""

    def __init__(self, root: Path, paths: Iterable[str]) -> None:
        # By path and line of a statement: the number of its block.
        self.by_line: dict[str, dict[int, int]] = {}
        self._trees: dict[str, ast.Module] = {}
        self._count = 0
        for path in paths:
            tree = ast.parse((root / path).read_text("utf-8"))
            self.by_line[path] = {}
            self._add_markers(tree, self.by_line[path], in_function=False)
            self._trees[str(root / path)] = ast.fix_missing_locations(tree)
        self._marks = bytearray(self._count)

    def install(self) -> None:
        """Compile the markers into the files that are imported from now on."""
        setattr(builtins, _MARKS, self._marks)
        replace_code(lambda path: compile(tree, path, "exec") if (tree := self._trees.get(path)) else None)

    def take_executed(self) -> set[int]:
        """Return the blocks that were executed since the last call."""
        executed = {match.start() for match in re.finditer(b"\1", self._marks)}
        self._marks[:] = bytes(self._count)
        return executed

    def _add_markers(self, node: ast.AST, by_line: dict[int, int], *, in_function: bool) -> None:
        for field, value in ast.iter_fields(node):
            is_code = isinstance(value, list) and value and isinstance(value[0], ast.stmt)
            if not is_code:
                for child in value if isinstance(value, list) else [value]:
                    if isinstance(child, ast.AST):
                        self._add_markers(child, by_line, in_function=in_function)
                continue
            marked: list[ast.stmt] = []
            is_new_block = True
            for statement in value:
                is_docstring = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
                if in_function and is_new_block and not is_docstring:
                    marked.append(ast.copy_location(self._new_marker(), statement))
                    is_new_block = False
                if in_function:
                    by_line.setdefault(statement.lineno, self._count - 1)
                is_function = isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef)
                self._add_markers(statement, by_line, in_function=in_function or is_function)
                marked.append(statement)
                is_new_block = is_new_block or hasattr(statement, "body") or hasattr(statement, "cases")
            setattr(node, field, marked)

    def _new_marker(self) -> ast.stmt:
        self._count += 1
        return ast.parse(f"{_MARKS}[{self._count - 1}] = 1").body[0]


def replace_code(find_code: Any) -> None:
    """Let imports use the code object that `find_code` returns for a path, unless it returns None."""
    get_code = SourceFileLoader.get_code

    def get_replaced_code(self: SourceFileLoader, fullname: str) -> CodeType | None:
        return find_code(self.path) or get_code(self, fullname)

    SourceFileLoader.get_code = get_replaced_code  # type: ignore[method-assign]
