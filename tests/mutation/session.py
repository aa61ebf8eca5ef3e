"""Record the blocks that each test executes, and run the tests of mutants, in forked processes.

pytest imports and collects the tests once. Then a forked process runs each test file and records the executed
blocks, and another forked process tests each mutant.
"""

import gc
import hashlib
import json
import os
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.mutation.child import Child, run_children
from tests.mutation.executed_blocks import ExecutedBlocks
from tests.mutation.in_place import ImportedFunctions
from tests.mutation.mutants import Mutant
from tests.mutation.planted import ENV, PROFILE

ROOT = Path(__file__).parents[2]
BUILD = ROOT / "build" / "mutation"
OPTIONS = ("-q", "-s", "--no-header", "-p", "no:cacheprovider", "-p", "tests.mutation.planted")
OPTIONS += ("--timeout", "60", "--hypothesis-profile", PROFILE)
# Hypothesis is already imported.
OPTIONS += ("-W", "ignore::pytest.PytestAssertRewriteWarning")
# The maximum number of tests of a mutant, and their CPU seconds, so that surviving mutants do not take most
# of the time.
_TESTS_MAX = 300
_TESTS_S_MAX = 20.0
_RECORDING_S_MAX = 400


class Result(NamedTuple):
    package: str
    mutant: Mutant
    outcome: str
    failed_test: str


class MutationSession:
    """A pytest plugin that replaces the execution of the tests."""

    def __init__(self, sample: list[tuple[str, Mutant]], blocks: ExecutedBlocks, workers: int) -> None:
        self.results: list[Result] = []
        self._sample = sample
        self._blocks = blocks
        self._workers = workers
        # The failed test, if any, and the CPU time of the test that runs in this process.
        self._failed = ""
        self._duration_s = 0.0
        # The results of the recording. `_imported` has the blocks that are executed when the tests are
        # imported.
        self._items: dict[str, pytest.Item] = {}
        self._imported: set[int] = set()
        self._durations_s: dict[str, float] = {}
        self._block_counts: dict[str, int] = {}
        self._tests: dict[int, set[str]] = defaultdict(set)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        if session.testsfailed:
            raise session.Interrupted(f"{session.testsfailed} errors during collection")
        self._items = {item.nodeid: item for item in session.items}
        self._imported = self._blocks.take_executed()
        # The garbage collector does not list the functions that tests/conftest.py excluded from collections.
        gc.unfreeze()
        functions = ImportedFunctions(ROOT)
        gc.collect()
        gc.freeze()
        began_s = time.monotonic()
        self._record_test_files()
        print(f"recorded {len(self._durations_s)} tests in {time.monotonic() - began_s:.0f} s", flush=True)
        for (package, mutant), status, output in run_children(
            self._start_mutants(functions), self._workers, BUILD
        ):
            # Exit status 5 means that pytest found no test.
            outcome = "survived" if status in (0, 5) else "timeout" if status < 0 else "killed"
            self._add_result(Result(package, mutant, outcome, _name_of_failed_test(output)))
        return True

    @pytest.hookimpl
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._failed = report.nodeid

    def _record_test_files(self) -> None:
        files: dict[Path, list[pytest.Item]] = defaultdict(list)
        for item in self._items.values():
            files[item.path].append(item)
        common = _file_digest(
            path
            for folder in ("protocol", "coordinator", "tests")
            for path in sorted((ROOT / folder).rglob("*.py"))
            if not path.name.startswith("test_") and path.parent != Path(__file__).parent
        )
        folder = BUILD / "recorded"
        folder.mkdir(parents=True, exist_ok=True)
        stored = {path: folder / f"{_file_digest([path], common)}.json" for path in files}
        for old in set(folder.iterdir()) - set(stored.values()):
            old.unlink()
        starts: list[tuple[Any, Callable[[Path], Child]]] = [
            (path, partial(Child, partial(self._record_file, items, stored[path]), cpu_s=_RECORDING_S_MAX))
            for path, items in files.items()
            if not stored[path].exists()
        ]
        for path, status, output in run_children(starts, self._workers, BUILD):
            if status:
                print(
                    f"{path.relative_to(ROOT)} is not used: it fails without a mutant.\n{output[-2000:]}",
                    flush=True,
                )
        for file in stored.values():
            for test, (duration_s, blocks) in json.loads(file.read_text() if file.exists() else "{}").items():
                self._durations_s[test], self._block_counts[test] = duration_s, len(blocks)
                for block in blocks:
                    self._tests[block].add(test)

    def _record_file(self, items: list[pytest.Item], file: Path) -> int:
        recorded = {}
        for item, following in pairwise([*items, None]):
            self._run_test(item, following)
            if self._failed:
                print(f"\nFAILED {self._failed}")
                return 1
            recorded[item.nodeid] = self._duration_s, sorted(self._blocks.take_executed())
        file.write_text(json.dumps(recorded))
        return 0

    def _run_test(self, item: pytest.Item, following: pytest.Item | None) -> None:
        # Measure CPU time, because it hardly depends on other processes.
        began_s = time.process_time()
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        self._duration_s = time.process_time() - began_s

    def _start_mutants(
        self, functions: ImportedFunctions
    ) -> Iterator[tuple[tuple[str, Mutant], Callable[[Path], Child]]]:
        for package, mutant in self._sample:
            block = self._blocks.by_line[mutant.path].get(mutant.statement_line)
            is_imported = mutant.at_import or block is None or block in self._imported
            tests = self._find_tests(mutant, None if is_imported else block)
            if not tests:
                self._add_result(Result(package, mutant, "not executed", ""))
                continue
            replacements = [] if is_imported else functions.find_replacements(mutant)
            run = (
                partial(self._run_with_replaced_code, replacements, tests)
                if replacements
                else partial(_run_imported, mutant, tests)
            )
            cpu_s = 20 + 3 * sum(self._durations_s[test] for test in tests)
            yield (package, mutant), partial(Child, run, cpu_s=cpu_s)

    def _find_tests(self, mutant: Mutant, block: int | None) -> list[str]:
        """Return the tests that execute a block: first those that execute few blocks, then those of its
        package, the fastest first.

        If the statement is in no block, it is executed during the import, and may affect all tests of its
        file and package, all tests whose file imports the module, and the property tests.
        """
        folders = {f"/{name}/" for name in Path(mutant.path).parts[:-1]} | {"/property/"}
        if block is not None:
            tests = self._tests[block]
        else:
            blocks = self._blocks.by_line[mutant.path].values()
            tests = {test for each in blocks for test in self._tests[each]}
            tests |= {test for test in self._durations_s if any(folder in test for folder in folders)}
            tests |= self._find_importing_tests(mutant.path)
        order = sorted(tests, key=lambda test: (self._durations_s[test], test))
        specific = sorted(order, key=self._block_counts.__getitem__)[: _TESTS_MAX // 3]
        # Run one parameter set of each test function first, because the other sets often detect the same
        # mutants.
        variants: dict[str, int] = defaultdict(int)
        variant_numbers = {}
        for test in order:
            function = test.partition("[")[0]
            variant_numbers[test] = variants[function]
            variants[function] += 1
        order.sort(key=lambda test: variant_numbers[test] > 0)
        own = [test for test in order if any(folder in test for folder in folders)][: _TESTS_MAX // 3]
        chosen = []
        left_s = _TESTS_S_MAX
        for test in list(dict.fromkeys([*specific, *own, *order]))[:_TESTS_MAX]:
            left_s -= self._durations_s[test]
            if left_s > 0 or not chosen:
                chosen.append(test)
        return chosen

    def _find_importing_tests(self, path: str) -> set[str]:
        statement = f"from {path.removesuffix('.py').replace('/', '.')} import "
        files = {item.path for item in self._items.values()}
        importing = {file for file in files if statement in file.read_text("utf-8")}
        return {test for test in self._durations_s if self._items[test].path in importing}

    def _run_with_replaced_code(self, replacements: list[tuple[Any, Any]], tests: list[str]) -> int:
        for function, code in replacements:
            function.__code__ = code
        for test, following in pairwise([*tests, None]):
            item = self._items[test]
            # A mutant that waits for ever is detected by the timeout of the test.
            item.add_marker(pytest.mark.timeout(20 + 20 * self._durations_s[test]), append=False)
            self._run_test(item, self._items[following] if following else None)
            if self._failed:
                print(f"\nFAILED {self._failed}")
                return 1
        return 0

    def _add_result(self, result: Result) -> None:
        self.results.append(result)
        mutant = result.mutant
        with open(BUILD / "results.tsv", "a" if len(self.results) > 1 else "w") as file:
            name = f"{mutant.path}:{mutant.number}"
            file.write(f"{result.outcome}\t{name}\t{mutant.line}\t{mutant.change}\t{result.failed_test}\n")
        if result.outcome not in ("killed", "timeout"):
            of = f"{len(self.results)} of {len(self._sample)}"
            print(
                f"{of} {result.outcome}: {mutant.path}:{mutant.line}: {mutant.change}: {mutant.source}",
                flush=True,
            )


def _run_imported(mutant: Mutant, tests: list[str]) -> int:
    """Run the tests in a new Python process, which imports the mutant."""
    file = BUILD / f"tests-{os.getpid()}.txt"
    file.write_text("\n".join(tests))
    os.environ[ENV] = f"{mutant.path}:{mutant.number}"
    os.execv(sys.executable, [sys.executable, "-m", "pytest", *OPTIONS, "-x", "--tb=line", f"@{file}"])


def _name_of_failed_test(output: str) -> str:
    """Return the name of the test that failed; empty if the process ended without a test's failure."""
    for line in output.splitlines():
        if line.startswith(("FAILED tests/", "ERROR tests/")):
            return line.split()[1]
    return ""


def _file_digest(paths: Iterable[Path], before: str = "") -> str:
    digest = hashlib.sha256(before.encode())
    for path in paths:
        digest.update(path.read_bytes())
    return digest.hexdigest()[:24]
