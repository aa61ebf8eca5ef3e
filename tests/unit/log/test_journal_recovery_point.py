"""The recovery point: damage to the last acknowledged commits is refused, never taken for a torn tail."""

import asyncio
from random import Random

import pytest

from coordinator.errors import LogDamaged
from coordinator.log.journal import layout
from coordinator.log.journal.recovery_point import IDLE_S
from coordinator.log.journal.scan import segment_number
from tests.simulation.disk import SimDisk
from tests.unit.log.environments import SimulatedEnvironment, append_durably
from tests.unit.log.journals import (
    FIRST_POSITION,
    append_records,
    copy_files,
    create_journal,
    expected_values,
    last_used_segment,
    make_record_value,
    open_damaged,
    open_journal,
    reopen_and_append,
    used_segments,
)


@pytest.fixture
def written_recovery_points(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Collect the commit numbers of the recovery points that are written."""
    commits: list[int] = []
    replace = SimDisk.replace

    async def record_and_replace(self: SimDisk, name: str, data: bytes) -> None:
        point = layout.decode_recovery_point(data)
        assert point is not None
        commits.append(point.commit)
        await replace(self, name, data)

    monkeypatch.setattr(SimDisk, "replace", record_and_replace)
    return commits


def create_idle_journal(world: SimulatedEnvironment, count: int, end: str = "killed") -> None:
    """Create a journal whose last append was acknowledged some time before the crash."""

    async def append_and_idle() -> None:
        journal = world.journal()
        await journal.open()
        await append_records(journal, count)
        await asyncio.sleep(3 * IDLE_S)
        if end == "killed":
            world.storage.kill()
        else:
            world.storage.cut_power()

    world.run(append_and_idle())


def test_zeroed_acknowledged_commits_are_always_detected() -> None:
    """Zero every range of consecutive sectors of the used area."""
    pristine = SimulatedEnvironment()
    create_idle_journal(pristine, 8)
    name, data = last_used_segment(pristine)
    sectors = range(FIRST_POSITION // layout.SECTOR_BYTES, -(-len(data) // layout.SECTOR_BYTES))
    for first in sectors:
        for last in range(first, sectors.stop):
            world = SimulatedEnvironment()
            world.storage.files = copy_files(pristine)
            begin = first * layout.SECTOR_BYTES
            world.storage.write_zeros(name, begin, (last + 1) * layout.SECTOR_BYTES - begin)
            assert "was durable" in open_damaged(world).found


def test_loss_of_the_last_segments_is_damage() -> None:
    pristine = SimulatedEnvironment()
    create_idle_journal(pristine, 60)
    segments = used_segments(pristine)
    assert len(segments) >= 3
    for kept in range(len(segments)):
        world = SimulatedEnvironment()
        world.storage.files = copy_files(pristine)
        for name in sorted(world.storage.files):
            if segment_number(name) is not None and name not in segments[:kept]:
                del world.storage.files[name]
        error = open_damaged(world)
        assert error.file.endswith(segments[kept] if kept else segments[-1])
        assert "the file is missing" in error.found


def test_recovery_point_is_written_only_when_the_journal_is_idle(written_recovery_points: list[int]) -> None:
    world = SimulatedEnvironment()

    async def run_test() -> None:
        journal = await open_journal(world)
        for number in range(500):
            await append_durably(journal, 0, [(b"key", make_record_value(number))])
            await asyncio.sleep(IDLE_S / 3)
        assert written_recovery_points == []
        await asyncio.sleep(2 * IDLE_S)
        assert written_recovery_points == [500]
        await asyncio.sleep(100 * IDLE_S)
        await journal.close()

    world.run(run_test())
    assert written_recovery_points == [500]


def test_close_writes_a_recovery_point_of_the_last_commit(written_recovery_points: list[int]) -> None:
    create_journal(SimulatedEnvironment(), 3, "closed")
    assert written_recovery_points == [3]


def test_open_after_a_kill_writes_a_recovery_point(written_recovery_points: list[int]) -> None:
    world = SimulatedEnvironment()
    create_journal(world, 3, "killed")
    assert written_recovery_points == []

    async def run_test() -> None:
        await open_journal(world)
        assert written_recovery_points == [3]
        world.storage.kill()

    world.run(run_test())


def test_recovery_point_in_sync_mode_os_covers_only_synced_commits(
    written_recovery_points: list[int],
) -> None:
    world = SimulatedEnvironment()

    async def run_test() -> None:
        journal = await open_journal(world, "os")
        await append_records(journal, 10)
        await asyncio.sleep(2 * IDLE_S)
        assert written_recovery_points == []
        await append_records(journal, 30, first=10)
        await asyncio.sleep(2 * IDLE_S)
        # The recovery point covers only the commits in full segments.
        assert len(written_recovery_points) == 1
        assert 10 < written_recovery_points[0] < 40
        await journal.close()

    world.run(run_test())
    assert written_recovery_points[-1] == 40


def test_failed_write_of_a_recovery_point_is_logged_once_and_retried(
    written_recovery_points: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    world = SimulatedEnvironment()

    async def run_test() -> None:
        journal = await open_journal(world)
        world.storage.faults.replace_fails_rate = 1.0
        await append_records(journal, 3)
        await asyncio.sleep(10)
        assert written_recovery_points[:3] == [3, 3, 3]
        assert journal.health() is None
        world.storage.faults.replace_fails_rate = 0.0
        await asyncio.sleep(2)
        world.storage.kill()

    world.run(run_test())
    assert [record.getMessage() for record in caplog.records] == [
        "the journal's recovery point cannot be written: [Errno 5] Input/output error"
    ]
    name, data = last_used_segment(world)
    world.storage.write_zeros(name, len(data) - 1, 1)
    assert "it was durable before" in open_damaged(world).found


def test_damaged_recovery_point_is_reported_ignored_and_replaced(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = SimulatedEnvironment()
    create_idle_journal(world, 3)
    world.storage.flip_bit(layout.RECOVERY_POINT_NAME, 20)
    assert reopen_and_append(world) == expected_values(3)
    assert "recovery-point is not valid and is ignored" in caplog.text
    caplog.clear()
    assert reopen_and_append(world) == [*expected_values(3), b"one more"]
    assert not caplog.records


@pytest.mark.slow
def test_damaged_journal_is_refused_or_read_completely() -> None:
    """Zero random sectors or remove random files of an idle journal: opening fails or returns all records."""
    refused = 0
    for seed in range(300):
        rng = Random(seed)
        world = SimulatedEnvironment(seed)
        count = rng.randrange(1, 70)
        create_idle_journal(world, count, rng.choice(("killed", "power failed")))
        for _ in range(rng.randrange(1, 4)):
            segments = used_segments(world)
            if segments:
                damage_randomly(world, rng.choice(segments), rng)
        try:
            assert reopen_and_append(world) == expected_values(count), f"seed {seed}"
        except LogDamaged:
            refused += 1
    assert refused > 250


def damage_randomly(world: SimulatedEnvironment, name: str, rng: Random) -> None:
    """Zero a sector of a segment, or remove its file."""
    if rng.random() < 0.1:
        del world.storage.files[name]
        return
    size = len(bytes(world.storage.files[name].shown).rstrip(b"\0"))
    sector = rng.randrange(-(-size // layout.SECTOR_BYTES))
    world.storage.write_zeros(name, sector * layout.SECTOR_BYTES, layout.SECTOR_BYTES)
