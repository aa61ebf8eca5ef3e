"""Style as a test: sizes of files and functions, and calls that have one home.

The limits make a reader's life easier and are no goal: a file that comes near its limit has two subjects.
A banned call outside its home is an untestable fact from outside: time and chance come in as arguments.
"""

import ast
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
GENERATED = ("protocol/messages/",)

# Each call, and the only places of the product that may make it.
HOMES = {
    "time.time": ("coordinator/clock.py",),
    "time.time_ns": ("coordinator/clock.py",),
    "time.monotonic": ("coordinator/clock.py", "coordinator/logging_setup.py"),
    "time.monotonic_ns": ("coordinator/clock.py",),
    "time.perf_counter": ("coordinator/clock.py",),
    "time.perf_counter_ns": ("coordinator/clock.py",),
    "time.sleep": (),
    "datetime.now": (),
    "datetime.utcnow": (),
    "datetime.today": (),
    "uuid.uuid1": (),
    "uuid.uuid4": ("coordinator/app.py", "coordinator/demo/", "coordinator/recovery/"),
    "random.*": ("coordinator/client/", "coordinator/client.py", "coordinator/demo.py", "coordinator/demo/"),
    "os.urandom": (),
    "secrets.*": ("coordinator/security/",),
    "print": ("protocol/codegen/",),
    "breakpoint": (),
    "eval": (),
    "exec": (),
}

REFUSED_NAMES = {"utils", "util", "helpers", "common", "manager", "core", "types", "misc"}


def python_files(*folders: str) -> Iterator[Path]:
    for folder in folders:
        yield from sorted((ROOT / folder).rglob("*.py"))


@cache
def parsed(source: str) -> ast.Module:
    return ast.parse(source)


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def is_generated(path: Path) -> bool:
    return relative(path).startswith(GENERATED)


def imported_names(tree: ast.Module) -> dict[str, str]:
    """Map the names that a module's imports bind to what they stand for, dotted."""
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


def banned_calls(source: str, path: str) -> list[str]:
    """The calls of a module that it is no home of, as `line: call`."""
    tree = parsed(source)
    names = imported_names(tree)
    found = []
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        head, *rest = ast.unparse(node.func).split(".")
        called = ".".join([names.get(head, head), *rest])
        # datetime the class lives in datetime the module.
        called = called.replace("datetime.datetime.", "datetime.").replace("builtins.", "")
        home = HOMES.get(called, HOMES.get(called.split(".")[0] + ".*"))
        if home is not None and not path.startswith(tuple(home)):
            found.append(f"{path}:{node.lineno}: {called}")
    return found


def long_functions(source: str, path: str) -> list[str]:
    """The functions of a module that are longer than the limit, docstrings counted."""
    found = []
    for node in ast.walk(parsed(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            if lines > FUNCTION_LINES_MAX:
                found.append(f"{path}:{node.lineno}: {node.name} has {lines} lines")
    return found


def test_files_are_short() -> None:
    long = [
        f"{relative(path)} has {lines} lines"
        for path in python_files(*PRODUCT, "tests")
        if not is_generated(path) and (lines := len(path.read_text("utf-8").splitlines())) > FILE_LINES_MAX
    ]
    assert long == []


def test_functions_are_short() -> None:
    long = [
        entry
        for path in python_files(*PRODUCT, "tests")
        if not is_generated(path)
        for entry in long_functions(path.read_text("utf-8"), relative(path))
    ]
    assert long == []


def test_facts_from_outside_have_one_home() -> None:
    found = [
        entry
        for path in python_files(*PRODUCT)
        for entry in banned_calls(path.read_text("utf-8"), relative(path))
    ]
    assert found == []


def test_every_module_says_what_it_holds() -> None:
    silent = [
        relative(path)
        for path in python_files(*PRODUCT, "tests")
        if path.read_text("utf-8").strip() and not ast.get_docstring(parsed(path.read_text("utf-8")))
    ]
    assert silent == []


def test_no_module_has_a_name_that_says_nothing() -> None:
    refused = [
        relative(path)
        for path in python_files(*PRODUCT, "tests")
        if REFUSED_NAMES & {*path.relative_to(ROOT).parts[:-1], path.stem}
    ]
    assert refused == []


def test_nothing_is_left_for_later() -> None:
    # Spelled in two halves, so that this file does not find itself.
    later = re.compile(r"\b(TO" + r"DO|FIX" + r"ME|XX" + r"X)\b")
    files = [
        *python_files(*PRODUCT, "tests"),
        *ROOT.glob("*.md"),
        *(ROOT / "docs").rglob("*.md"),
        ROOT / "Makefile",
    ]
    found = [
        f"{relative(path)}:{number}: {line.strip()}"
        for path in files
        for number, line in enumerate(path.read_text("utf-8").splitlines(), 1)
        if later.search(line)
    ]
    assert found == []


def test_no_test_sleeps_or_mocks() -> None:
    """Waiting for a real process or a broker may poll; everything else has its own clock or an event."""
    found = []
    for path in python_files("tests/unit", "tests/property", "tests/simulation", "tests/transcripts"):
        tree = parsed(path.read_text("utf-8"))
        names = imported_names(tree)
        for name in names.values():
            if name.startswith("unittest.mock"):
                found.append(f"{relative(path)}: {name}")
        for node in ast.walk(tree):
            if isinstance(node, ast.Call):
                head, *rest = ast.unparse(node.func).split(".")
                if ".".join([names.get(head, head), *rest]) == "time.sleep":
                    found.append(f"{relative(path)}:{node.lineno}: time.sleep")
    assert found == []


@pytest.mark.parametrize(
    ("source", "call"),
    [
        ("import time\ntime.time()", "time.time"),
        ("from time import monotonic as now\nnow()", "time.monotonic"),
        ("from datetime import datetime\ndatetime.now()", "datetime.now"),
        ("import datetime\ndatetime.datetime.utcnow()", "datetime.utcnow"),
        ("import random\nrandom.random()", "random.random"),
        ("import random\nrandom.Random(1)", "random.Random"),
        ("print(1)", "print"),
    ],
)
def test_a_banned_call_is_found_under_any_name(source: str, call: str) -> None:
    assert banned_calls(source, "coordinator/x.py") == [
        f"coordinator/x.py:{source.count(chr(10)) + 1}: {call}"
    ]


def test_a_banned_call_is_allowed_at_home() -> None:
    assert banned_calls("import time\ntime.time()", "coordinator/clock.py") == []


def test_a_long_function_is_found() -> None:
    body = "\n".join(["    pass"] * FUNCTION_LINES_MAX)
    assert long_functions(f"def f():\n{body}", "x.py") == [f"x.py:1: f has {FUNCTION_LINES_MAX + 1} lines"]


def test_the_licence_goes_along() -> None:
    """It says itself that whoever gets the program gets a copy: with the package, and so with the image."""
    assert "Apache License" in (ROOT / "LICENSE").read_text("utf-8")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert (project["license"], project["license-files"]) == ("Apache-2.0", ["LICENSE"])
    assert "!LICENSE" in (ROOT / ".dockerignore").read_text("utf-8").split()
    assert re.search(r"^COPY .*\bLICENSE\b", (ROOT / "Dockerfile").read_text("utf-8"), re.MULTILINE)
