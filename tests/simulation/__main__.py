"""Replay one run: `python -m tests.simulation --seed N [--minutes M] [--verbose]`."""

import argparse
import sys
from dataclasses import asdict
from time import perf_counter

from tests.simulation.plan import draw
from tests.simulation.simulator import Simulator


def main() -> int:
    """Run one seed, or as many as asked for from it up; return 1 if one was violated."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation")
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--seeds", type=int, default=1, help="so many seeds, from --seed up")
    parser.add_argument("--minutes", type=float, help="virtual minutes of the faulty phase")
    parser.add_argument("--verbose", action="store_true", help="print the plan and every operation")
    arguments = parser.parse_args()
    failed = 0
    for seed in range(arguments.seed, arguments.seed + arguments.seeds):
        began_s = perf_counter()
        plan = draw(seed, minutes=arguments.minutes)
        if arguments.verbose:
            for name, value in asdict(plan).items():
                sys.stdout.write(f"{name}: {value}\n")
        outcome = Simulator(plan).run()
        if arguments.verbose:
            sys.stdout.write(f"{outcome.trace}\n")
        sys.stdout.write(f"{outcome}, {perf_counter() - began_s:.2f} s\n")
        if outcome.violation is not None:
            sys.stdout.write(f"VIOLATION {type(outcome.violation).__name__}: {outcome.violation}\n")
            failed += 1
    return min(failed, 1)


if __name__ == "__main__":
    sys.exit(main())
