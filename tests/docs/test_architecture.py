"""The code paths in docs/architecture.md name functions that exist in the named files."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/architecture.md").read_text("utf-8")
PATHS = ("a write", "a takeover", "an audit", "a page view")
FUNCTIONS_OF_A_WRITE_MAX = 25


def listed_functions(path: str) -> list[tuple[str, str]]:
    """Return (file, function) for each function on a code path, in order."""
    section = PAGE.split(f"## The path of {path}\n")[1].split("\n## ")[0]
    rows = re.findall(r"^\|[^|]*\| `([^`]+)` \| (.+) \|$", section, re.M)
    return [(file, name) for file, names in rows for name in re.findall(r"`(\w+)`", names)]


def is_defined(file: str, function: str) -> bool:
    source = (ROOT / "coordinator" / file).read_text("utf-8")
    return (
        re.search(rf"^\s*(async )?(def|cdef|cpdef|function)\b[^=(]*\b{function}\(", source, re.M) is not None
    )


@pytest.mark.parametrize("path", PATHS)
def test_functions_of_a_documented_path_exist(path: str) -> None:
    functions = listed_functions(path)
    assert len(functions) > 5
    assert [(file, name) for file, name in functions if not is_defined(file, name)] == []


def test_code_path_of_a_write_has_no_more_functions_than_the_limit() -> None:
    assert len(listed_functions("a write")) <= FUNCTIONS_OF_A_WRITE_MAX


def test_each_folder_is_in_the_table() -> None:
    table = PAGE.split("## Folders\n")[1].split("\n## ")[0]
    rows = re.findall(r"^\| (`.+?`) \|", table, re.M)
    named = {
        name.removeprefix("coordinator/").strip("/") for row in rows for name in re.findall(r"`([^`]+)`", row)
    }
    folders = {path.parent.name for path in (ROOT / "coordinator").glob("*/__init__.py")}
    assert folders <= named, folders - named
