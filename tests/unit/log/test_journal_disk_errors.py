"""Disk errors: the results of appends, the health of the journal, and its recovery without a restart."""

import asyncio
import resource
from pathlib import Path

import pytest

from coordinator.errors import LogOutcomeUnknown, LogUnavailable
from coordinator.log.journal import Journal
from tests.simulation.disk import DiskFaults
from tests.unit.log.environments import (
    SEGMENT_BYTES,
    RealDiskEnvironment,
    SimulatedEnvironment,
    append,
    append_durably,
    read_all,
)
from tests.unit.log.journals import open_journal, read_offsets_after_kill

ONE = [(b"key", b"value" * 40)]


@pytest.mark.parametrize("fault", ["write", "sync"])
def test_commit_that_fails_once_is_retried_in_another_segment(fault: str) -> None:
    for seed in range(10):
        world = SimulatedEnvironment(seed)

        async def main(world: SimulatedEnvironment = world, fault: str = fault) -> None:
            journal = await open_journal(world)
            await append_durably(journal, 0, ONE)
            world.storage.next_faults = [fault]
            results = await asyncio.gather(*(append(journal, partition, ONE) for partition in range(3)))
            assert results == [(1, None), (0, None), (0, None)]
            assert journal.health() is None
            assert await append_durably(journal, 0, ONE) == 2
            assert [offset for offset, _, _ in (await read_all(journal))[0]] == [0, 1, 2]

        world.run(main())
        assert read_offsets_after_kill(world) == [0, 1, 2]


@pytest.mark.parametrize("faults", [["sync", "sync"], ["write", "write"], ["sync", "prepare"]])
def test_commit_that_fails_twice_has_an_unknown_outcome(faults: list[str]) -> None:
    for seed in range(10):
        world = SimulatedEnvironment(seed)

        async def main(world: SimulatedEnvironment = world) -> None:
            journal = await open_journal(world)
            await append_durably(journal, 0, ONE)
            # Wait until the spare file exists, so that a test can remove it.
            await asyncio.sleep(0.1)
            if "prepare" in faults:
                journal._segments._spare = None
            world.storage.next_faults = list(faults)
            base_offset, error = await append(journal, 0, ONE)
            assert (base_offset, type(error)) == (1, LogOutcomeUnknown)
            health = journal.health()
            assert health is not None
            assert "takes no writes" in health
            # The journal can still be read, and returns only acknowledged records.
            assert [offset for offset, _, _ in (await read_all(journal))[0]] == [0]
            assert journal.end_offset(0) == 1
            # Appends are refused at once until the journal's own retry succeeds.
            _, error = await append(journal, 0, ONE)
            assert type(error) is LogUnavailable
            await asyncio.sleep(2.5)
            assert journal.health() is None
            assert await append_durably(journal, 0, ONE) == 1

        world.run(main())
        assert read_offsets_after_kill(world) == [0, 1]


def test_spare_file_that_cannot_be_enlarged_is_removed() -> None:
    world = SimulatedEnvironment()
    large = [(b"key", bytes(3 * SEGMENT_BYTES))]

    async def main() -> None:
        journal = await open_journal(world)
        await append_durably(journal, 0, ONE)
        await asyncio.sleep(0.1)
        with_spare = journal.size_bytes()
        world.storage.next_faults = ["prepare"]
        _, error = await append(journal, 0, large)
        assert type(error) is LogUnavailable
        assert journal.size_bytes() == with_spare - SEGMENT_BYTES
        await asyncio.sleep(2.5)
        assert await append_durably(journal, 0, large) == 1

    world.run(main())
    assert read_offsets_after_kill(world) == [0, 1]


def test_segment_is_not_extended_if_a_next_header_may_be_on_disk() -> None:
    large = [(b"key", bytes(3 * SEGMENT_BYTES))]
    for seed in range(60):
        world = SimulatedEnvironment(seed, DiskFaults(write_s=0.001, sync_s=0.005))

        async def main(world: SimulatedEnvironment = world) -> None:
            journal = await open_journal(world)
            await append_durably(journal, 0, ONE)
            await append_durably(journal, 0, large)
            await asyncio.sleep(0.1)
            world.storage.next_faults = ["sync", "remove"]
            _, error = await append(journal, 0, large)
            assert type(error) is LogUnavailable
            # The first segment may be removed if a frame after the last one of the second segment permits it.
            journal.prune(0, 1)
            await asyncio.sleep(world.storage.rng.random() * 0.05)
            world.storage.cut_power()

        world.run(main())
        assert read_offsets_after_kill(world)[-1] == 1


def test_append_of_unknown_outcome_appears_at_most_once_after_a_restart() -> None:
    found_lengths = set()
    for seed in range(30):
        world = SimulatedEnvironment(seed)

        async def main(world: SimulatedEnvironment = world) -> None:
            journal = await open_journal(world)
            await append_durably(journal, 0, ONE)
            world.storage.next_faults = ["sync", "write"]
            _, error = await append(journal, 0, ONE)
            assert type(error) is LogOutcomeUnknown
            world.storage.cut_power()

        world.run(main())
        found = read_offsets_after_kill(world)
        assert found in ([0], [0, 1])
        found_lengths.add(len(found))
        assert read_offsets_after_kill(world) == found
    assert 1 in found_lengths


def test_append_that_waited_for_a_failed_commit_was_not_written() -> None:
    world = SimulatedEnvironment(faults=DiskFaults(sync_s=0.01))

    async def main() -> None:
        journal = await open_journal(world)
        await append_durably(journal, 0, ONE)
        world.storage.next_faults = ["sync", "sync"]
        first = asyncio.ensure_future(append(journal, 0, ONE))
        await asyncio.sleep(0.001)
        # The first append is being committed. After the first sync of this commit fails, the sync of the
        # header of the next segment fails, too.
        second = asyncio.ensure_future(append(journal, 1, ONE))
        _, first_error = await first
        _, second_error = await second
        assert type(first_error) is LogOutcomeUnknown
        assert type(second_error) is LogUnavailable

    world.run(main())
    assert read_offsets_after_kill(world) in ([0], [0, 1])


def test_full_disk_refuses_appends_and_accepts_them_when_space_is_free() -> None:
    world = SimulatedEnvironment(faults=DiskFaults(capacity_bytes=3 * SEGMENT_BYTES))

    async def main() -> None:
        journal = await open_journal(world)
        count = 0
        while True:
            base_offset, error = await append(journal, 0, ONE)
            if error is not None:
                break
            count += 1
        # The append was not written at all. The append cannot appear later, so no new read is needed.
        assert (base_offset, type(error)) == (count, LogUnavailable)
        assert "No space left on device" in str(error)
        assert "No space left on device" in str(journal.health())
        assert len((await read_all(journal))[0]) == count
        used_files = len(world.storage.files)
        for _ in range(100):
            await append(journal, 0, ONE)
        assert len(world.storage.files) == used_files
        world.storage.faults.capacity_bytes = None
        await asyncio.sleep(1.1)
        assert journal.health() is None
        assert await append_durably(journal, 0, ONE) == count
        await journal.close()

    world.run(main())


def test_pruning_frees_space_on_a_full_disk() -> None:
    world = SimulatedEnvironment(faults=DiskFaults(capacity_bytes=3 * SEGMENT_BYTES))

    async def main() -> None:
        journal = await open_journal(world)
        count = 0
        while (await append(journal, 0, ONE))[1] is None:
            count += 1
        journal.prune(0, count)
        await asyncio.sleep(1.1)
        assert journal.health() is None
        assert await append_durably(journal, 0, ONE) == count
        await journal.close()

    world.run(main())


def test_journal_on_a_full_disk_opens_for_reading() -> None:
    world = SimulatedEnvironment(faults=DiskFaults(capacity_bytes=2 * SEGMENT_BYTES))

    async def fill_disk() -> int:
        journal = await open_journal(world)
        count = 0
        while (await append(journal, 0, ONE))[1] is None:
            count += 1
        world.storage.kill()
        return count

    count = world.run(fill_disk())

    async def reopen_journal() -> None:
        journal = await open_journal(world)
        assert len((await read_all(journal))[0]) == count
        _, error = await append(journal, 0, ONE)
        assert type(error) is LogUnavailable
        world.storage.faults.capacity_bytes = None
        await asyncio.sleep(1.1)
        assert await append_durably(journal, 0, ONE) == count
        await journal.close()

    world.run(reopen_journal())


def test_repeated_commit_failures_do_not_fill_the_disk_with_segments() -> None:
    world = SimulatedEnvironment()

    async def main() -> None:
        journal = await open_journal(world)
        await append_durably(journal, 0, ONE)
        # Files can be created, but every commit fails.
        failing = DiskFaults(sync_fails_rate=0.0)
        world.storage.faults = failing
        for _ in range(60):
            if journal.health() is None:
                world.storage.next_faults = ["write", "write"]
                _, error = await append(journal, 0, ONE)
                assert error is not None
            await asyncio.sleep(1)
        assert len(world.storage.files) < 12
        world.storage.next_faults = []
        await asyncio.sleep(40)
        assert await append_durably(journal, 0, ONE) == 1
        await journal.close()

    world.run(main())


def test_empty_folder_on_a_full_disk_cannot_be_opened() -> None:
    world = SimulatedEnvironment(faults=DiskFaults(capacity_bytes=100))

    async def main() -> None:
        with pytest.raises(LogUnavailable, match="No space left"):
            await world.journal().open()
        world.storage.faults.capacity_bytes = None
        journal = await open_journal(world)
        await journal.close()

    world.run(main())


def test_unusable_folder_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    world = RealDiskEnvironment(tmp_path / "file")

    async def main() -> None:
        with pytest.raises(
            LogUnavailable, match=r"^data\.dir=unused must be a writable directory: File exists$"
        ):
            await world.journal().open()

    world.run(main())


def test_read_error_is_reported_and_a_later_read_succeeds(tmp_path: Path) -> None:
    world = SimulatedEnvironment()

    async def main() -> None:
        journal = await open_journal(world)
        await append_durably(journal, 0, ONE)
        world.storage.next_faults = ["read"]
        with pytest.raises(LogUnavailable, match="cannot be read"):
            await read_all(journal)
        assert len((await read_all(journal))[0]) == 1
        await journal.close()

    world.run(main())


def test_journal_recovers_after_the_file_size_limit_is_raised(tmp_path: Path) -> None:
    """Use the real disk, and the only real fault that needs no privileges: a limit on file sizes."""
    world = RealDiskEnvironment(tmp_path)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    large = 1 << 20

    def make_journal() -> Journal:
        return world.journal(segment_bytes=large)

    async def main() -> None:
        log = make_journal()
        await log.open()
        resource.setrlimit(resource.RLIMIT_FSIZE, (large // 2, hard))
        try:
            count = 0
            while (await append(log, 0, [(b"key", bytes(20_000))]))[1] is None:
                count += 1
                assert count < 200
            assert "File too large" in str(log.health())
            assert len((await read_all(log))[0]) == count
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        told: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_later(1.2, told.set_result, None)
        await told
        assert log.health() is None
        assert await append_durably(log, 0, ONE) == count
        await log.close()

    world.run(main())
