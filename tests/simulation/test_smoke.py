"""Simulate with fixed seeds, so that a failure means a regression.

A failure prints the command that replays it.  SIMULATION_SEED_FIRST and SIMULATION_SEEDS select other seeds;
`python -m tests.simulation` tries random seeds.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.simulation.run_seeds import KINDS, check_seed, check_seeds
from tests.simulation.seeds import FIXED, RANGES

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(("kind", "seed"), [(kind, seed) for kind in KINDS for seed in FIXED[kind]])
def test_fixed_seed_has_no_violation(kind: str, seed: int) -> None:
    assert check_seed(kind, None, seed) is None


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_range_of_seeds_has_no_violation(kind: str) -> None:
    seeds = RANGES[kind]
    first = int(os.environ.get("SIMULATION_SEED_FIRST") or seeds.start)
    count = int(os.environ.get("SIMULATION_SEEDS") or len(seeds))
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
