"""The real journal on real files: a crash at every point of a run, and disk calls that fail.

The process writes to a real folder, and a preloaded library records each call. For every call, the test opens
the possible contents of the disk after a kill or a power failure at this call. The calls include the
creation, end and removal of segments.
"""

from collections import Counter
from pathlib import Path
from random import Random

import pytest

from coordinator.log.journal import Journal
from tests.preloaded import compile_preloaded
from tests.unit.log.environments import SimulatedEnvironment, read_all
from tests.unit.log.faulty_disk import SOURCE, AcknowledgedAppends, DiskEvent, DiskImage, run_driver
from tests.unit.log.journals import open_journal

COMMITS = 60
EIO, ENOSPC = 5, 28


@pytest.fixture(scope="module")
def fault_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_preloaded(SOURCE, tmp_path_factory.mktemp("faulty-disk"))


def check_crash(image: DiskImage, promises: AcknowledgedAppends, crash: str, seed: int, sync: str) -> None:
    """Open the storage after a crash, and compare it with the acknowledgements."""
    world = SimulatedEnvironment()
    world.storage = image.storage_after_crash(crash, Random(seed))

    async def read_and_check() -> None:
        journal: Journal = await open_journal(world, sync)
        promises.check_records(await read_all(journal), may_lose=sync == "os" and crash != "kill")
        world.storage.kill()

    world.run(read_and_check())


def check_crash_after_each_event(
    events: list[DiskEvent], sync: str, crashes: tuple[str, ...]
) -> Counter[str]:
    """Crash after each event. Return the number of crashes after each kind of event."""
    image, promises, rng = DiskImage(), AcknowledgedAppends(), Random(1)
    kinds: Counter[str] = Counter()
    for number, event in enumerate(events):
        if event.kind == "N":
            promises.apply_driver_note(event.name)
            continue
        image.apply_disk_event(event, rng)
        kinds[event.kind] += 1
        # A new file is filled with zeros in many writes, so do not crash after each of these writes.
        if event.kind == "W" and not any(event.data):
            continue
        for crash in crashes:
            try:
                check_crash(image, promises, crash, number, sync)
            except BaseException as error:
                error.add_note(f"{crash} after event {number}: {event.kind} {event.name} {event.position}")
                raise
    return kinds


@pytest.mark.slow
@pytest.mark.parametrize("pure", [False, True], ids=["kernel", "thread"])
def test_acknowledged_records_survive_a_crash_at_any_point(
    fault_library: Path, tmp_path: Path, pure: bool
) -> None:
    events = run_driver(fault_library, tmp_path / "run", "always", COMMITS, pure=pure)
    kinds = check_crash_after_each_event(events, "always", ("kill", "loses", "keeps", "draws", "draws"))
    # Segments were created and removed.
    assert kinds["C"] > 4
    assert kinds["U"] > 2
    assert kinds["S"] > COMMITS
    assert kinds["F"] == 0


@pytest.mark.slow
def test_sync_mode_os_loses_only_the_last_commits_and_only_on_power_failure(
    fault_library: Path, tmp_path: Path
) -> None:
    events = run_driver(fault_library, tmp_path / "run", "os", COMMITS)
    kinds = check_crash_after_each_event(events, "os", ("kill", "loses", "keeps", "draws", "draws"))
    assert kinds["U"] >= 2
    # Each segment is synced before an earlier one is removed.
    assert kinds["S"] > kinds["U"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("call", "error", "plans"),
    [
        ("write", EIO, ("20", "24 25 26")),
        ("write", ENOSPC, ("21", "25 26 27")),
        ("sync", EIO, ("20", "24 25 26")),
        ("allocate", ENOSPC, ("2", "3 4")),
        ("remove", EIO, ("1", "1 2")),
    ],
)
def test_failed_disk_call_loses_no_acknowledged_record(
    fault_library: Path, tmp_path: Path, call: str, error: int, plans: tuple[str, ...]
) -> None:
    """One call of the given kind fails, or several calls in a row fail."""
    for place, plan in enumerate(plans):
        faults = " ".join(f"{call} {number} {error}" for number in plan.split())
        events = run_driver(fault_library, tmp_path / str(place), "always", COMMITS, faults=faults)
        assert sum(event.kind == "X" for event in events) == len(plan.split())
        assert events[-1] == DiskEvent("N", "closed", 0, b"")
        check_crash_after_each_event(events, "always", ("kill", "draws"))
