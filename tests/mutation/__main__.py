"""Test a random sample of mutants of each package: `make mutants MUTANTS=n SEED=s`.

First, the quick tests run once without compiled modules, and the lines that each test executes are recorded.
Then each mutant runs in a process of its own, with the tests that execute its line, the fastest first, until
one fails.

accepted.toml names the survivors that are equivalent to the product, or that a second check makes harmless.
The command fails if less than 90 % of the other mutants are killed in a package.
"""

import argparse
import hashlib
import os
import random
import shutil
import subprocess
import sys
import time
import tomllib
from collections import Counter
from contextlib import suppress
from itertools import zip_longest
from pathlib import Path
from typing import NamedTuple

from tests.mutation.child import Child, import_libraries
from tests.mutation.executed_lines import FOLDER_ENV, PROFILE, ExecutedLines, read_executed_lines
from tests.mutation.mutants import Mutant, compile_mutant, list_mutants

ROOT = Path(__file__).parents[2]
BUILD = ROOT / "build" / "mutation"
PACKAGES = {
    "protocol": ("protocol/*.py", "protocol/messages/*.py"),
    "shard": ("coordinator/shard/*.py",),
    "runtime": ("coordinator/serve/runtime/*.py", "coordinator/serve/service.py"),
    "server": ("coordinator/serve/server/*.py",),
    "log": ("coordinator/log/*.py", "coordinator/log/journal/*.py", "coordinator/log/kafka/*.py"),
    "ownership": ("coordinator/cluster/ownership/*.py",),
    "claims": (
        "coordinator/log/claims.py",
        "coordinator/log/kafka/ownership*.py",
        "coordinator/recovery/scan.py",
    ),
    "fold": tuple(
        f"coordinator/recovery/{name}.py"
        for name in ("batch_overlay", "share_partitions", "states", "state_tasks")
    ),
}
# Values of limits are tuned, not tested.
_NOT_MUTATED = ("limits.py", "sizes.py")
_TESTS = (
    "tests/unit",
    "tests/property",
    "tests/transcripts",
    "tests/simulation",
    "tests/recovery",
    "tests/conformance/test_vectors.py",
)
_QUICK = "not slow and not broker and not e2e and not spark and not browser"
_KILLED_MIN = 0.9
# The number of tests that run for a mutant, so that survivors do not take most of the time.
_TESTS_MAX = 300


class Result(NamedTuple):
    package: str
    mutant: Mutant
    outcome: str
    failed_test: str
    reason: str


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.mutation")
    parser.add_argument("--mutants", type=int, default=320, help="size of the sample, all packages together")
    parser.add_argument("--seed", type=int, default=1, help="of the sample")
    parser.add_argument("--package", choices=PACKAGES, action="append", help="only this package")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument(
        "--recorded", action="store_true", help="use the last recording, also if files changed"
    )
    parser.add_argument("--also", action="append", default=[], metavar="TEST", help="a test for all mutants")
    options = parser.parse_args()
    os.chdir(ROOT)
    os.environ["SHARE_COORDINATOR_PURE_PYTHON"] = "1"
    executed = record_executed_lines(options.workers, reuse=options.recorded)
    executed.for_all.extend(options.also)
    packages = options.package or list(PACKAGES)
    sample = draw_sample(packages, options.mutants // len(packages), options.seed)
    import_libraries()
    check_unchanged(sample[0][1], executed)
    results: list[Result] = []
    with suppress(KeyboardInterrupt):
        run_sample(sample, executed, options.workers, results)
    report(results, options.seed)


def record_executed_lines(workers: int, *, reuse: bool) -> ExecutedLines:
    """Run the quick tests and record the lines that they execute, unless that was done for these files.

    With `reuse`, take the last recording of other files: the lines of new tests are missing.
    """
    digest = hashlib.sha256()
    for folder in ("protocol", "coordinator", "tests"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            digest.update(path.read_bytes())
    folder = BUILD / f"lines-{digest.hexdigest()[:16]}"
    if reuse:
        folder = next(BUILD.glob("lines-*"), folder)
    if not folder.exists():
        began_s = time.monotonic()
        shutil.rmtree(BUILD, ignore_errors=True)
        new = BUILD / "new"
        new.mkdir(parents=True)
        tests = [
            *("-q", "-n", str(workers), "--dist", "worksteal", "-p", "tests.mutation.executed_lines"),
            *("--timeout", "300", "--hypothesis-profile", PROFILE, "-m", _QUICK),
            *_TESTS,
        ]
        command = [sys.executable, "-m", "pytest", *tests]
        if subprocess.run(command, env={**os.environ, FOLDER_ENV: str(new)}).returncode:
            sys.exit("The tests fail without a mutant.")
        new.rename(folder)
        print(f"recorded the executed lines in {time.monotonic() - began_s:.0f} s", flush=True)
    return read_executed_lines(folder)


def draw_sample(packages: list[str], size: int, seed: int) -> list[tuple[str, Mutant]]:
    """Return `size` mutants of each package, or all if it has fewer."""
    samples = []
    for package in packages:
        paths = sorted(
            path.relative_to(ROOT).as_posix()
            for pattern in PACKAGES[package]
            for path in ROOT.glob(pattern)
            if path.name not in _NOT_MUTATED
        )
        mutants = [mutant for path in paths for mutant in list_mutants(ROOT, path)]
        chosen = random.Random(f"{package} {seed}").sample(mutants, min(size, len(mutants)))
        samples.append([(package, mutant) for mutant in chosen])
    # One mutant of each package, then the next, so that an interrupted run has results of all.
    return [one for row in zip_longest(*samples) for one in row if one is not None]


def find_tests(mutant: Mutant, executed: ExecutedLines) -> list[str]:
    """Return the tests that execute the line of the mutant: first those of its package, the fastest first.

    A line that is executed by an import may affect all tests of its module, or else of its folder.
    """
    lines = executed.tests.get(mutant.path, {})
    tests = lines.get(mutant.line, set()) or lines.get(mutant.statement_line, set())
    is_imported = "" in tests or mutant.at_import
    if is_imported:
        tests = set().union(*lines.values()) - {""}
    folder = mutant.path.rpartition("/")[0]
    while not tests and folder and is_imported:
        files = [executed.tests[path] for path in executed.tests if path.startswith(f"{folder}/")]
        tests = {test for file in files for line in file.values() for test in line} - {""}
        folder = folder.rpartition("/")[0]
    package = Path(mutant.path).parent.name
    order = sorted(tests, key=lambda test: executed.durations_s.get(test, 0.0))
    own = [test for test in order if f"/{package}/" in test][: _TESTS_MAX // 2]
    # Properties compare whole states, so they detect what other tests do not check.
    properties = [test for test in order if test.startswith("tests/property/")][: _TESTS_MAX // 4]
    return executed.for_all + list(dict.fromkeys([*own, *properties, *order]))[:_TESTS_MAX]


def start_child(mutant: Mutant, executed: ExecutedLines, folder: Path) -> Child | None:
    """Run the tests of a mutant; return None if no test executes its line."""
    tests = find_tests(mutant, executed)
    if not tests:
        return None
    cpu_s = 20 + 2 * sum(executed.durations_s.get(test, 0.0) for test in tests)
    return Child(ROOT / mutant.path, compile_mutant(ROOT, mutant), tests, folder, cpu_s)


def check_unchanged(mutant: Mutant, executed: ExecutedLines) -> None:
    """Run the tests of a mutant without its change: they must pass."""
    path = ROOT / mutant.path
    tests = find_tests(mutant, executed)[:20]
    child = Child(path, compile(path.read_bytes(), str(path), "exec"), tests, BUILD / "unchanged", 300)
    while not (outcome := child.poll()):
        time.sleep(0.02)
    if outcome != "survived":
        sys.exit(f"The tests fail in a forked process without a mutant; see {child.log}.")


def run_sample(
    sample: list[tuple[str, Mutant]], executed: ExecutedLines, workers: int, results: list[Result]
) -> None:
    """Run all mutants, and add their results."""
    waiting = sample[::-1]
    running: dict[int, tuple[str, Mutant, Child]] = {}
    accepted = read_accepted()

    def finish(package: str, mutant: Mutant, outcome: str, failed_test: str = "") -> None:
        reason = accepted.get((mutant.path, mutant.source, mutant.change), "")
        results.append(Result(package, mutant, outcome, failed_test, reason))
        with open(BUILD / "results.tsv", "a" if len(results) > 1 else "w") as file:
            file.write(f"{outcome}\t{mutant.path}:{mutant.line}\t{mutant.change}\t{failed_test}\n")
        if outcome not in ("killed", "timeout"):
            mark = "accepted" if reason else outcome
            of = f"{len(results)} of {len(sample)}"
            print(f"{of} {mark}: {mutant.path}:{mutant.line}: {mutant.change}: {mutant.source}", flush=True)

    try:
        while waiting or running:
            for worker in range(workers):
                if worker not in running and waiting:
                    package, mutant = waiting.pop()
                    if child := start_child(mutant, executed, BUILD / f"worker-{worker}"):
                        running[worker] = (package, mutant, child)
                    else:
                        finish(package, mutant, "not executed")
            time.sleep(0.02)
            for worker, (package, mutant, child) in list(running.items()):
                if (outcome := child.poll()) is not None:
                    del running[worker]
                    finish(package, mutant, outcome, child.failed_test())
    finally:
        for _, _, child in running.values():
            child.stop()


def read_accepted() -> dict[tuple[str, str, str], str]:
    """Return the reason of each accepted survivor by its file, line and change."""
    entries = tomllib.loads((Path(__file__).parent / "accepted.toml").read_text("utf-8"))
    return {(one["file"], one["line"], one["change"]): one["reason"] for one in entries.get("accepted", [])}


def report(results: list[Result], seed: int) -> None:
    """Print the score of each package; exit with 1 if one is too low."""
    lines = [
        f"seed {seed}",
        f"{'package':12}{'mutants':>9}{'killed':>8}{'accepted':>10}{'survived':>10}{'score':>8}",
    ]
    low = []
    for package in PACKAGES:
        of_package = [one for one in results if one.package == package]
        if not of_package:
            continue
        counts = Counter(
            "killed" if one.outcome in ("killed", "timeout") else "accepted" if one.reason else "survived"
            for one in of_package
        )
        score = counts["killed"] / max(1, counts["killed"] + counts["survived"])
        low += [package] if score < _KILLED_MIN else []
        lines.append(
            f"{package:12}{len(of_package):9}{counts['killed']:8}{counts['accepted']:10}{counts['survived']:10}{score:8.1%}"
        )
    for one in results:
        if one.outcome not in ("killed", "timeout") and not one.reason:
            mutant = one.mutant
            lines.append(f"{one.outcome}: {mutant.path}:{mutant.line}: {mutant.change}: {mutant.source}")
    text = "\n".join(lines)
    (BUILD / "report.txt").write_text(text + "\n")
    print(text)
    if low:
        sys.exit(f"Less than {_KILLED_MIN:.0%} killed: {', '.join(low)}.")


if __name__ == "__main__":
    main()
