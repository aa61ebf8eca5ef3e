"""Test that the simulator detects every mutant of the coordinator within a bounded number of seeds."""

import sys

import pytest

from coordinator import fastpath
from tests.simulation.journal_mutants import JOURNAL_MUTANTS
from tests.simulation.kafka.mutants import KAFKA_MUTANTS
from tests.simulation.mutants import MUTANTS
from tests.simulation.run_seeds import KINDS
from tests.simulation.seeds import FIRST_SEED_BY_MUTANT, MINUTES_BY_MUTANT

SEEDS_MAX = 250
ALL = {
    **{name: ("alone", breakage) for name, breakage in (MUTANTS | JOURNAL_MUTANTS).items()},
    **{name: ("kafka", breakage) for name, breakage in KAFKA_MUTANTS.items()},
}


@pytest.mark.parametrize("name", ALL)
def test_mutant_is_detected(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    kind, breakage = ALL[name]
    # The mutants patch Python code, so the compiled fast path is disabled.
    monkeypatch.setattr(fastpath, "compiled", None)
    breakage(monkeypatch)
    minutes = MINUTES_BY_MUTANT.get(name)
    seeds = [FIRST_SEED_BY_MUTANT.get(name, 1), *range(1, SEEDS_MAX)]
    violations = ((seed, KINDS[kind](seed, minutes).violation) for seed in seeds)
    noticed_by, violation = next((seed, wrong) for seed, wrong in violations if wrong is not None)
    # A patched function has another signature than its original.
    assert not isinstance(violation, TypeError | AttributeError), f"adapt the mutant: {violation!r}"
    if noticed_by != seeds[0]:
        sys.stdout.write(f"detected by seed {noticed_by}: set this seed in FIRST_SEED_BY_MUTANT\n")


def test_seed_hints_name_existing_mutants() -> None:
    assert (FIRST_SEED_BY_MUTANT | MINUTES_BY_MUTANT).keys() - ALL.keys() == set()
