"""Simulate with many seeds on all cores: `python -m tests.simulation [--kind K] [--seeds N]`.

The first seed is random. `--seed N` simulates with one seed, and `--verbose` prints all operations.
"""

import argparse
import sys
from dataclasses import asdict
from random import SystemRandom
from time import perf_counter

from tests.simulation.run_seeds import KINDS, check_each_seed

SEEDS = 1_000
# The minimum number of seconds between two lines about the progress.
PROGRESS_S = 5.0


def main() -> int:
    """Simulate with one seed or a range of seeds; return 1 if a checker reports a violation."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation")
    parser.add_argument("--kind", choices=KINDS, help="kind of simulation (default: each kind in turn)")
    parser.add_argument("--seed", type=int, help="the first seed (default: random)")
    parser.add_argument("--seeds", type=int, help=f"number of seeds (default: 1 with --seed, else {SEEDS})")
    parser.add_argument("--minutes", type=float, help="virtual minutes of the phase with faults")
    parser.add_argument("--verbose", action="store_true", help="print the plan and every operation")
    arguments = parser.parse_args()
    first = SystemRandom().randrange(1 << 40) if arguments.seed is None else arguments.seed
    count = arguments.seeds or (SEEDS if arguments.seed is None else 1)
    failed = 0
    for kind in [arguments.kind] if arguments.kind else KINDS:
        if count == 1:
            failed += _run_seed(kind, first, arguments.minutes, verbose=arguments.verbose)
        else:
            failed += _run_seeds(kind, range(first, first + count), arguments.minutes)
    return min(failed, 1)


def _run_seed(kind: str, seed: int, minutes: float | None, *, verbose: bool) -> int:
    began_s = perf_counter()
    outcome = KINDS[kind](seed, minutes)
    if verbose:
        for name, value in asdict(outcome.plan).items():
            sys.stdout.write(f"{name}: {value}\n")
        sys.stdout.write(f"{outcome.trace}\n")
    sys.stdout.write(f"{outcome}, {perf_counter() - began_s:.2f} s\n")
    if outcome.violation is None:
        return 0
    sys.stdout.write(f"VIOLATION {type(outcome.violation).__name__}: {outcome.violation}\n")
    return 1


def _run_seeds(kind: str, seeds: range, minutes: float | None) -> int:
    began_s = reported_s = perf_counter()
    sys.stdout.write(f"{kind}: {len(seeds)} seeds from {seeds.start} up\n")
    failed = 0
    for done, violation in enumerate(check_each_seed(kind, seeds, minutes), 1):
        if violation is not None:
            failed += 1
            sys.stdout.write(f"{violation}\n")
            sys.stdout.flush()
        now_s = perf_counter()
        if now_s - reported_s > PROGRESS_S:
            reported_s = now_s
            sys.stderr.write(f"{kind}: {done} of {len(seeds)} seeds done, {failed} failed\n")
            sys.stderr.flush()
    sys.stdout.write(f"{kind}: {failed} of {len(seeds)} went wrong, {perf_counter() - began_s:.0f} s\n")
    return failed


if __name__ == "__main__":
    sys.exit(main())
