"""Style checks that ruff does not have: sizes of files and functions, names, and waiting in tests."""

import ast
import gc
import re
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILE_LINES_MAX = 400
FUNCTION_LINES_MAX = 60

PRODUCT = ("protocol", "coordinator")

REFUSED_NAMES = {"utils", "util", "helpers", "common", "manager", "core", "types", "misc"}


def list_python_files(*folders: str) -> Iterator[Path]:
    for folder in folders:
        yield from sorted((ROOT / folder).rglob("*.py"))


@pytest.fixture(autouse=True, scope="module")
def without_garbage_collection() -> Iterator[None]:
    """Disable the garbage collector, because each collection would traverse all cached syntax trees."""
    gc.disable()
    yield
    parse_source.cache_clear()
    gc.enable()


@cache
def parse_source(source: str) -> ast.Module:
    return ast.parse(source)


def relative_path(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def map_imported_names(tree: ast.Module) -> dict[str, str]:
    """Map each name that the imports of a module bind to its dotted origin."""
    names = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                top = alias.name.split(".")[0]
                names[alias.asname or top] = alias.name if alias.asname else top
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            for alias in node.names:
                names[alias.asname or alias.name] = f"{node.module}.{alias.name}"
    return names


def find_long_functions(source: str, path: str) -> list[str]:
    """Return the functions that are longer than the limit, including docstrings."""
    found = []
    for node in ast.walk(parse_source(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            if lines > FUNCTION_LINES_MAX:
                found.append(f"{path}:{node.lineno}: {node.name} has {lines} lines")
    return found


def test_files_are_within_the_line_limit() -> None:
    long = [
        f"{relative_path(path)} has {lines} lines"
        for path in list_python_files(*PRODUCT, "tests")
        if (lines := len(path.read_text("utf-8").splitlines())) > FILE_LINES_MAX
    ]
    assert long == []


@pytest.mark.slow
def test_functions_are_within_the_line_limit() -> None:
    long = [
        entry
        for path in list_python_files(*PRODUCT, "tests")
        for entry in find_long_functions(path.read_text("utf-8"), relative_path(path))
    ]
    assert long == []


def test_every_module_has_a_docstring() -> None:
    undocumented = [
        relative_path(path)
        for path in list_python_files(*PRODUCT, "tests")
        if path.read_text("utf-8").strip() and not ast.get_docstring(parse_source(path.read_text("utf-8")))
    ]
    assert undocumented == []


def test_no_module_has_a_vague_name() -> None:
    refused = [
        relative_path(path)
        for path in list_python_files(*PRODUCT, "tests")
        if REFUSED_NAMES & {*path.relative_to(ROOT).parts[:-1], path.stem}
    ]
    assert refused == []


def test_no_todo_comments_exist() -> None:
    # Each word is split in two, so that the pattern does not match this file.
    later = re.compile(r"\b(TO" + r"DO|FIX" + r"ME|XX" + r"X)\b")
    files = [
        *list_python_files(*PRODUCT, "tests"),
        *ROOT.glob("*.md"),
        *(ROOT / "docs").rglob("*.md"),
        ROOT / "Makefile",
    ]
    found = [
        f"{relative_path(path)}:{number}: {line.strip()}"
        for path in files
        for number, line in enumerate(path.read_text("utf-8").splitlines(), 1)
        if later.search(line)
    ]
    assert found == []


def test_no_test_sleeps_or_mocks() -> None:
    """Tests of real processes and brokers may poll. All other tests control their clock or await an event."""
    found = []
    for path in list_python_files("tests/unit", "tests/property", "tests/simulation", "tests/transcripts"):
        tree = parse_source(path.read_text("utf-8"))
        names = map_imported_names(tree)
        for name in names.values():
            if name.startswith("unittest.mock"):
                found.append(f"{relative_path(path)}: {name}")
        for node in ast.walk(tree):
            if isinstance(node, ast.Call):
                head, *rest = ast.unparse(node.func).split(".")
                if ".".join([names.get(head, head), *rest]) == "time.sleep":
                    found.append(f"{relative_path(path)}:{node.lineno}: time.sleep")
    assert found == []


def test_long_function_is_found() -> None:
    body = "\n".join(["    pass"] * FUNCTION_LINES_MAX)
    assert find_long_functions(f"def f():\n{body}", "x.py") == [
        f"x.py:1: f has {FUNCTION_LINES_MAX + 1} lines"
    ]


def test_licence_is_in_the_package_and_in_the_image() -> None:
    """The licence requires that each copy of the program includes the licence text."""
    assert "Apache License" in (ROOT / "LICENSE").read_text("utf-8")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert (project["license"], project["license-files"]) == ("Apache-2.0", ["LICENSE"])
    assert "!LICENSE" in (ROOT / ".dockerignore").read_text("utf-8").split()
    assert re.search(r"^COPY .*\bLICENSE\b", (ROOT / "Dockerfile").read_text("utf-8"), re.MULTILINE)
