"""Test the journal with random faults: error rates, delays, capacity and restarts, derived from one seed."""

from random import Random

import pytest

from tests.simulation.disk import DiskFaults
from tests.unit.log.restarts import RestartTest

SEEDS_AT_A_TIME = 20


def drawn_faults(rng: Random) -> DiskFaults:
    """Return random faults. For most seeds, most kinds of faults have the rate 0."""

    def draw_rate(most: float) -> float:
        return rng.random() ** 3 * most if rng.random() < 0.4 else 0.0

    return DiskFaults(
        write_fails_rate=draw_rate(0.5),
        sync_fails_rate=draw_rate(0.5),
        prepare_fails_rate=draw_rate(0.9),
        remove_fails_rate=draw_rate(0.9),
        write_s=rng.choice((0.0, 0.0001, 0.001, 0.01)),
        sync_s=rng.choice((0.0001, 0.001, 0.01, 0.05)),
        stall_rate=draw_rate(0.05),
        stall_s=rng.choice((0.1, 2.0)),
        capacity_bytes=rng.choice((None, None, 40_000, 100_000)),
    )


def run_with_seed(seed: int) -> RestartTest:
    """Restart the journal several times with the faults of one seed; return the test with its counters."""
    rng = Random(seed)
    sync = rng.choice(("always", "os"))
    faults = drawn_faults(rng)
    # With sync=os, appends do not wait for syncs. After a failed sync and a power failure, records may be
    # missing in the middle. The journal reports that as damage, so no power failure is simulated then.
    lossy = sync == "os" and faults.sync_fails_rate > 0
    deaths = ("close", "kill") if lossy else ("close", "kill", "power")
    lives = RestartTest(seed, faults, sync, deaths, life_s=rng.choice((0.05, 0.2, 1.0)))
    try:
        lives.run(5)
    except BaseException as error:
        error.add_note(f"tests.property.test_journal.run_with_seed({seed}): sync {sync}, {faults}")
        raise
    return lives


@pytest.mark.slow
@pytest.mark.parametrize("first_seed", range(1_000, 1_000 + 4 * SEEDS_AT_A_TIME, SEEDS_AT_A_TIME))
def test_acknowledged_records_survive_random_faults(first_seed: int) -> None:
    lives = [run_with_seed(seed) for seed in range(first_seed, first_seed + SEEDS_AT_A_TIME)]
    assert sum(each.acknowledged for each in lives) > 500
    assert sum(each.refused + each.unknown for each in lives) > 20
