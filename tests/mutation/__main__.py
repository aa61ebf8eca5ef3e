"""Test a random sample of mutants of each package: `make mutants MUTANTS=n SEED=s`.

pytest collects the quick tests once, without compiled modules. First, each test runs, and the blocks of code
that it executes are recorded. A recording is reused until the product or the test changes. Then each mutant
runs in a forked process, with the tests that execute its block, the fastest first, until one fails.

A mutant is *killed* if a test fails, and *survives* otherwise. accepted.toml lists survivors that do not
change the behaviour, or whose defect a second check prevents. The command fails if tests kill less than 90 %
of the other mutants of a package.
"""

import argparse
import os
import random
import sys
import tomllib
from collections import Counter
from itertools import zip_longest
from pathlib import Path

import pytest

from tests.mutation.executed_blocks import ExecutedBlocks
from tests.mutation.mutants import Mutant, list_mutants
from tests.mutation.session import BUILD, OPTIONS, ROOT, MutationSession, Result

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
# These files are not mutated: they define limits, and no test should depend on the exact value of a limit.
_NOT_MUTATED = ("limits.py", "sizes.py")
_TESTS = (
    "tests/unit",
    "tests/property",
    "tests/transcripts",
    "tests/fuzz",
    "tests/simulation",
    "tests/recovery",
    "tests/limits/test_requests.py",
    "tests/conformance/test_vectors.py",
)
# These tests are not run, because they plant defects themselves.
_LEFT_OUT = ("--ignore", "tests/simulation/test_mutants.py")
_QUICK = "not slow and not broker and not e2e and not spark and not browser"
_KILLED_MIN = 0.9


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.mutation")
    parser.add_argument("--mutants", type=int, default=480, help="size of the sample, all packages together")
    parser.add_argument("--seed", type=int, default=1, help="of the sample")
    parser.add_argument("--package", choices=PACKAGES, action="append", help="only this package")
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    os.chdir(ROOT)
    os.environ["SHARE_COORDINATOR_PURE_PYTHON"] = "1"
    packages = options.package or list(PACKAGES)
    sample = draw_sample(packages, options.mutants // len(packages), options.seed)
    paths = sorted({path for package in PACKAGES for path in list_mutated_files(package)})
    blocks = ExecutedBlocks(ROOT, paths)
    blocks.install()
    session = MutationSession(sample, blocks, options.workers)
    status = pytest.main([*OPTIONS, "-m", _QUICK, *_TESTS, *_LEFT_OUT], plugins=[session])
    report(session.results, options.seed)
    if status:
        sys.exit(f"Interrupted after {len(session.results)} of {len(sample)} mutants.")


def list_mutated_files(package: str) -> list[str]:
    return sorted(
        path.relative_to(ROOT).as_posix()
        for pattern in PACKAGES[package]
        for path in ROOT.glob(pattern)
        if path.name not in _NOT_MUTATED
    )


def draw_sample(packages: list[str], size: int, seed: int) -> list[tuple[str, Mutant]]:
    """Return `size` random mutants of each package, or all mutants of a package that has fewer."""
    samples = []
    for package in packages:
        mutants = [mutant for path in list_mutated_files(package) for mutant in list_mutants(ROOT, path)]
        chosen = random.Random(f"{package} {seed}").sample(mutants, min(size, len(mutants)))
        samples.append([(package, mutant) for mutant in chosen])
    # The mutants of the packages alternate, so that an interrupted run has results of all packages.
    return [result for row in zip_longest(*samples) for result in row if result is not None]


class Accepted:
    """The accepted surviving mutants: single changes, and all changes of some functions and classes."""

    def __init__(self) -> None:
        text = (Path(__file__).parent / "accepted.toml").read_text("utf-8")
        groups = tomllib.loads(text)["accepted"]
        self._changes = {tuple(each) for group in groups for each in group.get("mutants", ())}
        self._scopes = {tuple(each) for group in groups for each in group.get("scopes", ())}

    def __contains__(self, mutant: Mutant) -> bool:
        names = mutant.scope.split(".")
        scopes = {(mutant.path, ".".join(names[: count + 1])) for count in range(len(names))}
        return (mutant.path, mutant.source, mutant.change) in self._changes or bool(scopes & self._scopes)


def report(results: list[Result], seed: int) -> None:
    """Print the fraction of killed mutants of each package; exit with 1 if a fraction is too low."""
    lines = [
        f"seed {seed}",
        f"{'package':12}{'mutants':>9}{'killed':>8}{'accepted':>10}{'survived':>10}{'score':>8}",
    ]
    low = []
    accepted = Accepted()
    for package in PACKAGES:
        package_results = [result for result in results if result.package == package]
        if not package_results:
            continue
        counts = Counter(
            "killed"
            if result.outcome in ("killed", "timeout")
            else "accepted"
            if result.mutant in accepted
            else "survived"
            for result in package_results
        )
        score = counts["killed"] / max(1, counts["killed"] + counts["survived"])
        low += [package] if score < _KILLED_MIN else []
        lines.append(
            f"{package:12}{len(package_results):9}{counts['killed']:8}{counts['accepted']:10}{counts['survived']:10}{score:8.1%}"
        )
    for result in results:
        if result.outcome not in ("killed", "timeout") and result.mutant not in accepted:
            mutant = result.mutant
            lines.append(f"{result.outcome}: {mutant.path}:{mutant.line}: {mutant.change}: {mutant.source}")
    text = "\n".join(lines)
    (BUILD / "report.txt").write_text(text + "\n")
    print(text)
    if low:
        sys.exit(f"Less than {_KILLED_MIN:.0%} killed: {', '.join(low)}.")


if __name__ == "__main__":
    main()
