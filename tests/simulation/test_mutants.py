"""Test that a fixed seed of the simulator detects each mutant of the coordinator.

Without a mutant, the fixed seeds have no violation.
"""

import pytest

from coordinator import fastpath
from protocol.errors import DecodeError
from tests.simulation.journal_mutants import JOURNAL_MUTANTS
from tests.simulation.kafka.mutants import KAFKA_MUTANTS
from tests.simulation.mutants import MUTANTS
from tests.simulation.run_seeds import KINDS, check_seeds
from tests.simulation.seeds import FIRST_SEED_BY_MUTANT, FIXED

# If no fixed seed detects a mutant, the test searches these seeds for one that does.
SEARCHED_SEEDS = range(1, 250)
ALL_MUTANTS = {
    **{name: ("alone", plant_defect) for name, plant_defect in (MUTANTS | JOURNAL_MUTANTS).items()},
    **{name: ("kafka", plant_defect) for name, plant_defect in KAFKA_MUTANTS.items()},
}


@pytest.mark.parametrize("name", ALL_MUTANTS)
def test_mutant_is_detected(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    kind, plant_defect = ALL_MUTANTS[name]
    # The mutants patch Python code, so the compiled fast path is disabled.
    monkeypatch.setattr(fastpath, "compiled", None)
    plant_defect(monkeypatch)
    fixed = [FIRST_SEED_BY_MUTANT.get(name, 1), *FIXED[kind], *list_detecting_seeds(kind)]
    violations = ((seed, KINDS[kind](seed, None).violation) for seed in [*fixed, *SEARCHED_SEEDS])
    detected_by, violation = next((seed, found) for seed, found in violations if found is not None)
    # Another exception means that the patch does not fit the coordinator any more.
    assert isinstance(violation, AssertionError | DecodeError), f"adapt the mutant: {violation!r}"
    assert detected_by in fixed, "set this seed in FIRST_SEED_BY_MUTANT"


def list_detecting_seeds(kind: str) -> list[int]:
    """Return the seeds in FIRST_SEED_BY_MUTANT for one kind of simulation."""
    return sorted({seed for name, seed in FIRST_SEED_BY_MUTANT.items() if ALL_MUTANTS[name][0] == kind})


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_seed_that_detects_a_mutant_has_no_violation(kind: str) -> None:
    seeds = [seed for seed in list_detecting_seeds(kind) if seed not in FIXED[kind]]
    assert list(check_seeds(kind, seeds)) == []


def test_seed_hints_name_existing_mutants() -> None:
    assert FIRST_SEED_BY_MUTANT.keys() - ALL_MUTANTS.keys() == set()
