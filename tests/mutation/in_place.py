"""Apply a mutant to modules that are already imported, by replacing the code of functions."""

import ast
import gc
import inspect
from collections import defaultdict
from functools import cache
from pathlib import Path
from types import CodeType, FunctionType

from tests.mutation.mutants import Mutant, compile_mutant

# The qualified name and the first line of a function.
FunctionId = tuple[str, int]


class ImportedFunctions:
    """All functions that exist after the import of the coordinator and of the tests."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._functions: dict[tuple[str, FunctionId], list[FunctionType]] = defaultdict(list)
        for each in gc.get_objects():
            if isinstance(each, FunctionType):
                code = each.__code__
                self._functions[code.co_filename, _function_id(code)].append(each)

    def find_replacements(self, mutant: Mutant) -> list[tuple[FunctionType, CodeType]]:
        """Return the functions that the mutant changes, with their new code.

        The list is empty if the change cannot be made by replacing code: the function is not imported, its
        first line does not identify it, or it uses different variables of outer functions.
        """
        path = str(self._root / mutant.path)
        original = _compile_original(self._root / mutant.path)
        changed = _codes_by_function(compile_mutant(self._root, mutant))
        changed = {place: codes for place, codes in changed.items() if codes != original.get(place)}
        found: list[tuple[FunctionType, CodeType]] = []
        for place, codes in changed.items():
            functions = self._functions[path, place]
            if len(codes) > 1 or any(each.__code__.co_freevars != codes[0].co_freevars for each in functions):
                return []
            found += [(each, codes[0]) for each in functions]
        names = [function.__code__.co_qualname for function, _ in found]
        for name, _ in changed:
            # Functions inside a replaced function are omitted, because they are created from the new code.
            if not any(name == other or name.startswith(f"{other}.<locals>.") for other in names):
                return []
        return found


@cache
def _compile_original(path: Path) -> dict[FunctionId, list[CodeType]]:
    return _codes_by_function(compile(ast.parse(path.read_text("utf-8")), str(path), "exec"))


def _codes_by_function(module: CodeType) -> dict[FunctionId, list[CodeType]]:
    """Return the code objects of all functions, without those of class bodies."""
    codes: dict[FunctionId, list[CodeType]] = defaultdict(list)
    waiting = [module]
    while waiting:
        for code in waiting.pop().co_consts:
            if isinstance(code, CodeType):
                waiting.append(code)
                if code.co_flags & inspect.CO_OPTIMIZED:
                    codes[_function_id(code)].append(code)
    return codes


def _function_id(code: CodeType) -> FunctionId:
    return code.co_qualname, code.co_firstlineno
