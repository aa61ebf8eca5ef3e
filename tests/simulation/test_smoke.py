"""Simulate with fixed seeds and, in the slow tests, with new seeds in each run.

A failure prints the command that replays it. SIMULATION_SEED_FIRST and SIMULATION_SEEDS select the new seeds.
"""

import os
import subprocess
import sys
from pathlib import Path
from random import SystemRandom

import pytest

from tests.simulation.plan import OPERATIONS_AT_A_TIME_MAX, draw_plan
from tests.simulation.run_seeds import KINDS, check_seed, check_seeds
from tests.simulation.seeds import FIXED, NEW_SEEDS, QUICK

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("kind", "seed"),
    [
        pytest.param(kind, seed, marks=[] if seed in QUICK[kind] else pytest.mark.slow)
        for kind in KINDS
        for seed in FIXED[kind]
    ],
)
def test_fixed_seed_has_no_violation(kind: str, seed: int) -> None:
    assert check_seed(kind, None, seed) is None


def test_disk_without_faults_is_fast_enough_for_the_write_timeout() -> None:
    # Seed 22 with one operation per append once violated this: operations exceeded the write timeout without
    # a fault.
    for seed in range(500):
        plan = draw_plan(seed).without_faults()
        limits, disk = plan.runtime_limits, plan.disk_faults
        appends = OPERATIONS_AT_A_TIME_MAX / limits.operations_per_append_max
        assert appends * (disk.write_s + disk.sync_s) < 0.51 * limits.write_timeout_s


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_new_seeds_have_no_violation(kind: str) -> None:
    first = int(os.environ.get("SIMULATION_SEED_FIRST") or SystemRandom().randrange(1 << 40))
    count = int(os.environ.get("SIMULATION_SEEDS") or NEW_SEEDS)
    assert list(check_seeds(kind, range(first, first + count))) == []


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_seed_is_reproducible(kind: str) -> None:
    # A different PYTHONHASHSEED changes the order of sets.
    def run_and_read_trace(hash_seed: str) -> bytes:
        program = (
            "from tests.simulation.run_seeds import KINDS\n"
            f"print(*(KINDS[{kind!r}](seed, None).trace for seed in (12, 32, 45)))"
        )
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        return subprocess.run(
            [sys.executable, "-c", program], cwd=ROOT, env=environment, check=True, capture_output=True
        ).stdout

    first = run_and_read_trace("1")
    assert len(first) > 10_000
    assert first == run_and_read_trace("2")
