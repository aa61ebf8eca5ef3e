"""A pytest plugin that records the lines of the product that each test executes, and the test's duration.

Loaded with `-p`, before the first module of the product is imported. Each pytest-xdist worker writes one file
to the folder in MUTATION_LINES_FOLDER. Without the variable, only the Hypothesis profile is defined.
"""

import json
import os
from collections import defaultdict
from collections.abc import Generator
from pathlib import Path
from typing import NamedTuple

import pytest
from coverage import Coverage
from hypothesis import HealthCheck, settings

FOLDER_ENV = "MUTATION_LINES_FOLDER"
PROFILE = "mutants"

# The same examples in each run, and none from earlier runs, so that the result of a mutant can be repeated.
settings.register_profile(
    PROFILE,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    max_examples=25,
    derandomize=True,
    database=None,
)


class ExecutedLines(NamedTuple):
    """For each file and line, the tests that execute it; for each test, its duration in seconds.

    The test "" stands for the import of the modules. The tests `for_all` run for each mutant.
    """

    tests: dict[str, dict[int, set[str]]]
    durations_s: dict[str, float]
    for_all: list[str]


class _Recorder:
    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._coverage = Coverage(data_file=None, source=["protocol", "coordinator"], branch=False)
        self._coverage.start()
        self._durations_s: dict[str, float] = defaultdict(float)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        self._coverage.switch_context(item.nodeid)
        try:
            return (yield)
        finally:
            self._coverage.switch_context("")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        # The controller of pytest-xdist receives the reports of its workers, but it executes no test.
        if "PYTEST_XDIST_WORKER" in os.environ:
            self._durations_s[report.nodeid] += report.duration

    def pytest_sessionfinish(self) -> None:
        self._coverage.stop()
        if not self._durations_s:
            return
        data = self._coverage.get_data()
        lines = {
            os.path.relpath(path): {line: tests for line, tests in data.contexts_by_lineno(path).items()}
            for path in data.measured_files()
        }
        file = Path(self._folder) / f"{os.environ['PYTEST_XDIST_WORKER']}.json"
        file.write_text(json.dumps({"lines": lines, "durations_s": self._durations_s}))


if folder := os.environ.get(FOLDER_ENV):
    _recorder = _Recorder(folder)

    def pytest_configure(config: pytest.Config) -> None:
        config.pluginmanager.register(_recorder)


def read_executed_lines(folder: Path) -> ExecutedLines:
    """Merge the files of all workers."""
    executed = ExecutedLines({}, {}, [])
    for file in folder.glob("*.json"):
        found = json.loads(file.read_text())
        executed.durations_s.update(found["durations_s"])
        for path, lines in found["lines"].items():
            for line, tests in lines.items():
                known = executed.tests.setdefault(path, {}).setdefault(int(line), set())
                known.update(tests)
    return executed
