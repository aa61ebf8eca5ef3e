"""Fuzz all targets, two at a time, and report defects: `python -m tests.fuzz`.

Each defect is reported as a file with the input. `python -m tests.fuzz TARGET FILE` replays the input. Add
the file to tests/fuzz/corpus/TARGET.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from coordinator.compiled_sources import PURE_PYTHON_ENV
from tests.fuzz.instrumented import COMPILED_TARGETS, ROOT, build_modules, instrumented_environment

CORPUS = Path(__file__).with_name("corpus")
FINDINGS = ROOT / "build/findings"
PLANTED_S_MAX = 120
_AT_A_TIME = 2
_TARGETS = sorted(folder.name for folder in CORPUS.iterdir())
# libFuzzer prints this text if the target has no instrumented code.
_NO_COVERAGE = "no interesting inputs were found"
_RUNS = re.compile(r"stat::number_of_executed_units: (\d+)")


def run_fuzzer(
    name: str, decoder: str, seconds: int, findings: Path, new: Path
) -> "subprocess.CompletedProcess[str]":
    """Run libFuzzer on a target in a separate process. `decoder` is `intact` or `planted`."""
    command = ["-m", "tests.fuzz.fuzzer", name, decoder, str(seconds), str(findings), str(new)]
    return subprocess.run(
        [sys.executable, *command, str(CORPUS / name)],
        # Atheris instruments Python code only, so the other targets execute the sources of compiled modules.
        env=instrumented_environment() if name in COMPILED_TARGETS else {**os.environ, PURE_PYTHON_ENV: "1"},
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )


def fuzz_target(name: str, seconds: int, keep: Path | None) -> bool:
    """Fuzz one target. Return whether no defect was found."""
    with tempfile.TemporaryDirectory(prefix="share-coordinator-fuzz-") as temporary:
        new = keep / name if keep is not None else Path(temporary)
        new.mkdir(parents=True, exist_ok=True)
        ended = run_fuzzer(name, "intact", seconds, FINDINGS, new)
        runs = _RUNS.search(ended.stderr)
        print(f"{name}: {runs[1] if runs else 0} runs, {len(list(new.iterdir()))} inputs reached new code")
    if ended.returncode or runs is None or _NO_COVERAGE in ended.stderr:
        print(f"{name}: FAILED\n{ended.stdout[-2_000:]}{ended.stderr[-8_000:]}", flush=True)
        return False
    return True


def find_planted_defect(name: str) -> bool:
    """Plant a defect in the decoder of a target. Return whether the fuzzer finds it."""
    with tempfile.TemporaryDirectory(prefix="share-coordinator-fuzz-") as temporary:
        folder = Path(temporary)
        ended = run_fuzzer(name, "planted", PLANTED_S_MAX, folder, folder)
        found = ended.returncode != 0 and any(folder.glob(f"{name}-crash-*"))
    print(f"{name}: the planted defect was {'found' if found else 'NOT FOUND'}", flush=True)
    if not found:
        print(f"{ended.stdout[-2_000:]}{ended.stderr[-8_000:]}", flush=True)
    return found


def run_all(check: Callable[[str], bool], names: Sequence[str]) -> int:
    """Check several targets concurrently; return the exit code, 1 if a check failed."""
    with ThreadPoolExecutor(_AT_A_TIME) as pool:
        return 0 if all(list(pool.map(check, names))) else 1


def main() -> int:
    """Build the modules and fuzz. Return 1 if a defect was found."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("target", nargs="?", choices=_TARGETS)
    parser.add_argument("file", nargs="?", type=Path, help="replay this input")
    parser.add_argument(
        "--minutes", type=float, default=5, help="minutes for all targets together (default: 5)"
    )
    parser.add_argument(
        "--planted", action="store_true", help="find the planted defect of each target instead"
    )
    parser.add_argument("--keep", type=Path, help="the folder for inputs that reach new code")
    options = parser.parse_args()
    if options.file is not None:
        from tests.fuzz.targets import TARGETS

        TARGETS[options.target](options.file.read_bytes())
        return 0
    build_modules()
    FINDINGS.mkdir(parents=True, exist_ok=True)
    names = [options.target] if options.target else _TARGETS
    if options.planted:
        return run_all(find_planted_defect, names)
    seconds = max(1, int(options.minutes * 60 * min(_AT_A_TIME, len(names)) / len(names)))
    return run_all(lambda name: fuzz_target(name, seconds, options.keep), names)


if __name__ == "__main__":
    raise SystemExit(main())
