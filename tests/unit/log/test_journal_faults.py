"""The journal on a faulty disk: acknowledged records survive every crash, and no other records appear."""

import pytest

from tests.simulation.disk import DiskFaults
from tests.simulation.journal_mutants import JOURNAL_MUTANTS
from tests.unit.log.restarts import RestartTest

SLOW = {"write_s": 0.0002, "sync_s": 0.001}
FAULTS = {
    "none": DiskFaults(**SLOW),
    "slow": DiskFaults(write_s=0.005, sync_s=0.02, stall_rate=0.01, stall_s=1.0),
    "short writes": DiskFaults(write_fails_rate=0.02, **SLOW),
    "failing syncs": DiskFaults(sync_fails_rate=0.02, **SLOW),
    "failing often": DiskFaults(write_fails_rate=0.3, sync_fails_rate=0.3, prepare_fails_rate=0.3, **SLOW),
    "no new files": DiskFaults(prepare_fails_rate=0.9, remove_fails_rate=0.5, **SLOW),
    "a small disk": DiskFaults(capacity_bytes=60_000, **SLOW),
}
# If many operations fail, a process must run longer to acknowledge enough records.
LIFE_S = {"slow": 1.0, "failing often": 5.0, "no new files": 3.0, "a small disk": 3.0}


@pytest.mark.slow
@pytest.mark.parametrize("sync", ["always", "os"])
@pytest.mark.parametrize("name", FAULTS)
def test_acknowledged_records_survive_every_crash(name: str, sync: str) -> None:
    acknowledged = 0
    faults = FAULTS[name]
    # With sync mode `os`, no append waits for a sync. If a sync fails before a power failure, records may be
    # missing in the middle of the log, which the journal refuses as damage.
    lossy = sync == "os" and faults.sync_fails_rate > 0
    endings = ("close", "kill") if lossy else ("close", "kill", "power")
    for seed in range(8):
        restarts = RestartTest(seed, faults, sync, endings, LIFE_S.get(name, 0.1))
        try:
            restarts.run(6)
        except BaseException as error:
            error.add_note(
                f"RestartTest({seed}, FAULTS[{name!r}], {sync!r}, {endings}, "
                f"LIFE_S.get({name!r}, 0.1)).run(6)"
            )
            raise
        acknowledged += restarts.acknowledged
    assert acknowledged > 100


@pytest.mark.parametrize(
    "name",
    [
        "reads_appends_of_unknown_outcome",
        "treats_failed_commit_as_successful",
        "reports_unknown_outcome_as_success",
    ],
)
def test_planted_journal_defect_is_detected(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    JOURNAL_MUTANTS[name](monkeypatch)
    with pytest.raises(AssertionError) as noticed:
        test_acknowledged_records_survive_every_crash("failing often", "always")
    # Only an error of RestartTest.run gets a note. The note proves that the check of the records detected the
    # defect.
    assert noticed.value.__notes__
