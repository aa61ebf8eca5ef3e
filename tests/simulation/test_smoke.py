"""The simulator on fixed seeds and on fresh ones. A failure is replayed with the command that it prints.

SIMULATION_SEEDS says how many fresh seeds there are (a few hundred by default), SIMULATION_SEED_FIRST which
is the first of them (a random one by default).
"""

import os
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from random import SystemRandom

import pytest

from tests.simulation.plan import draw
from tests.simulation.seeds import FIXED
from tests.simulation.simulator import Simulator

FRESH_SEEDS = 240
ROOT = Path(__file__).parents[2]


def verdict(seed: int) -> str | None:
    """Run one seed; return what is wrong and how to see it again, or None."""
    outcome = Simulator(draw(seed)).run()
    if outcome.violation is None:
        return None
    return (
        f"{outcome}\n{type(outcome.violation).__name__}: {outcome.violation}\n"
        f"replay: python -m tests.simulation --seed {seed} --verbose"
    )


@pytest.mark.parametrize("seed", FIXED)
def test_fixed_seed(seed: int) -> None:
    assert verdict(seed) is None


@pytest.mark.slow
def test_fresh_seeds() -> None:
    count = int(os.environ.get("SIMULATION_SEEDS", FRESH_SEEDS))
    first = int(os.environ.get("SIMULATION_SEED_FIRST") or SystemRandom().randrange(1 << 40))
    sys.stdout.write(f"SIMULATION_SEED_FIRST={first} SIMULATION_SEEDS={count}\n")
    workers = os.cpu_count() or 1
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        verdicts = pool.map(verdict, range(first, first + count), chunksize=max(1, count // (4 * workers)))
        assert [wrong for wrong in verdicts if wrong is not None] == []


def test_a_seed_does_the_same_each_time() -> None:
    """Also when hashes differ, which is what another process has and a replay must not notice."""

    def trace(hash_seed: str) -> bytes:
        program = (
            "from tests.simulation.plan import draw\n"
            "from tests.simulation.simulator import Simulator\n"
            "print(*(Simulator(draw(seed)).run().trace for seed in (12, 32, 45)))"
        )
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        return subprocess.run(
            [sys.executable, "-c", program], cwd=ROOT, env=environment, check=True, capture_output=True
        ).stdout

    first = trace("1")
    assert len(first) > 10_000
    assert first == trace("2")
