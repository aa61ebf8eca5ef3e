"""Simulate with fixed seeds, for which a failure means a regression, and with new seeds in each run.

A failure prints the command that replays it. SIMULATION_SEED_FIRST and SIMULATION_SEEDS select the new seeds.
"""

import os
import subprocess
import sys
from pathlib import Path
from random import SystemRandom

import pytest

from tests.simulation.run_seeds import KINDS, check_seed, check_seeds
from tests.simulation.seeds import FIXED, NEW_SEEDS

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(("kind", "seed"), [(kind, seed) for kind in KINDS for seed in FIXED[kind]])
def test_fixed_seed_has_no_violation(kind: str, seed: int) -> None:
    assert check_seed(kind, None, seed) is None


def test_burst_is_served_without_faults_although_appends_are_small() -> None:
    # Each append has one operation, so a burst needs many appends within the write timeout.
    assert check_seed("alone", 4.0, 22) is None


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_new_seeds_have_no_violation(kind: str) -> None:
    first = int(os.environ.get("SIMULATION_SEED_FIRST") or SystemRandom().randrange(1 << 40))
    count = int(os.environ.get("SIMULATION_SEEDS") or NEW_SEEDS)
    assert list(check_seeds(kind, range(first, first + count))) == []


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_seed_is_reproducible(kind: str) -> None:
    """The trace must not depend on hash values, which differ between processes."""

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
