"""A disk that refuses: what appends are told, what the journal says of itself, how it goes on by itself."""

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
from tests.unit.log.journals import errors_of_closing, offsets_after_reopening, opened

ONE = [(b"key", b"value" * 40)]


@pytest.mark.parametrize("fault", ["write", "sync"])
def test_a_commit_that_fails_once_is_written_elsewhere_and_nobody_notices(fault: str) -> None:
    for seed in range(10):
        world = SimulatedEnvironment(seed)

        async def main(world: SimulatedEnvironment = world, fault: str = fault) -> None:
            journal = await opened(world)
            await append_durably(journal, 0, ONE)
            world.storage.next_faults = [fault]
            results = await asyncio.gather(*(append(journal, partition, ONE) for partition in range(3)))
            assert results == [(1, None), (0, None), (0, None)]
            assert journal.health() is None
            assert await append_durably(journal, 0, ONE) == 2
            assert [offset for offset, _, _ in (await read_all(journal))[0]] == [0, 1, 2]

        world.run(main())
        assert offsets_after_reopening(world) == [0, 1, 2]


@pytest.mark.parametrize("faults", [["sync", "sync"], ["write", "write"], ["sync", "prepare"]])
def test_a_commit_that_cannot_be_written_at_all_has_an_unknown_outcome(faults: list[str]) -> None:
    for seed in range(10):
        world = SimulatedEnvironment(seed)

        async def main(world: SimulatedEnvironment = world) -> None:
            journal = await opened(world)
            await append_durably(journal, 0, ONE)
            # Without the spare file, which is made ahead.
            await asyncio.sleep(0.1)
            if "prepare" in faults:
                journal._segments._spare = None
            world.storage.next_faults = list(faults)
            base_offset, error = await append(journal, 0, ONE)
            assert (base_offset, type(error)) == (1, LogOutcomeUnknown)
            health = journal.health()
            assert health is not None
            assert "takes no writes" in health
            # Reading goes on, and shows what is known to be there.
            assert [offset for offset, _, _ in (await read_all(journal))[0]] == [0]
            assert journal.end_offset(0) == 1
            # It is refused at once, not tried, until the journal has tried by itself.
            _, error = await append(journal, 0, ONE)
            assert type(error) is LogUnavailable
            await asyncio.sleep(2.5)
            assert journal.health() is None
            assert await append_durably(journal, 0, ONE) == 1

        world.run(main())
        assert offsets_after_reopening(world) == [0, 1]


def test_a_spare_file_that_cannot_be_made_larger_is_gone() -> None:
    world = SimulatedEnvironment()
    large = [(b"key", bytes(3 * SEGMENT_BYTES))]

    async def main() -> None:
        journal = await opened(world)
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
    assert offsets_after_reopening(world) == [0, 1]


def test_nothing_is_written_behind_the_end_that_a_header_names_which_may_be_there() -> None:
    large = [(b"key", bytes(3 * SEGMENT_BYTES))]
    for seed in range(60):
        world = SimulatedEnvironment(seed, DiskFaults(write_s=0.001, sync_s=0.005))

        async def main(world: SimulatedEnvironment = world) -> None:
            journal = await opened(world)
            await append_durably(journal, 0, ONE)
            await append_durably(journal, 0, large)
            await asyncio.sleep(0.1)
            world.storage.next_faults = ["sync", "remove"]
            _, error = await append(journal, 0, large)
            assert type(error) is LogUnavailable
            # The first segment may go, if a frame behind the second one's last says so.
            journal.prune(0, 1)
            await asyncio.sleep(world.storage.rng.random() * 0.05)
            world.storage.cut_power()

        world.run(main())
        assert offsets_after_reopening(world)[-1] == 1


def test_an_unknown_outcome_may_be_found_after_a_restart_but_only_once() -> None:
    found_lengths = set()
    for seed in range(30):
        world = SimulatedEnvironment(seed)

        async def main(world: SimulatedEnvironment = world) -> None:
            journal = await opened(world)
            await append_durably(journal, 0, ONE)
            world.storage.next_faults = ["sync", "write"]
            _, error = await append(journal, 0, ONE)
            assert type(error) is LogOutcomeUnknown
            world.storage.cut_power()

        world.run(main())
        found = offsets_after_reopening(world)
        assert found in ([0], [0, 1])
        found_lengths.add(len(found))
        assert offsets_after_reopening(world) == found
    assert 1 in found_lengths


def test_those_that_only_waited_were_never_written() -> None:
    world = SimulatedEnvironment(faults=DiskFaults(sync_s=0.01))

    async def main() -> None:
        journal = await opened(world)
        await append_durably(journal, 0, ONE)
        world.storage.next_faults = ["sync", "sync"]
        first = asyncio.ensure_future(append(journal, 0, ONE))
        await asyncio.sleep(0.001)
        # The first is being committed.  When that fails, the second sync to fail is that of a new header.
        second = asyncio.ensure_future(append(journal, 1, ONE))
        _, first_error = await first
        _, second_error = await second
        assert type(first_error) is LogOutcomeUnknown
        assert type(second_error) is LogUnavailable

    world.run(main())
    assert offsets_after_reopening(world) in ([0], [0, 1])


def test_a_full_disk_refuses_and_takes_again_when_there_is_room() -> None:
    world = SimulatedEnvironment(faults=DiskFaults(capacity_bytes=3 * SEGMENT_BYTES))

    async def main() -> None:
        journal = await opened(world)
        count = 0
        while True:
            base_offset, error = await append(journal, 0, ONE)
            if error is not None:
                break
            count += 1
        # Nothing of it was written: it will not show up, and needs no reading again.
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


def test_pruning_makes_room_on_a_full_disk() -> None:
    world = SimulatedEnvironment(faults=DiskFaults(capacity_bytes=3 * SEGMENT_BYTES))

    async def main() -> None:
        journal = await opened(world)
        count = 0
        while (await append(journal, 0, ONE))[1] is None:
            count += 1
        journal.prune(0, count)
        await asyncio.sleep(1.1)
        assert journal.health() is None
        assert await append_durably(journal, 0, ONE) == count
        await journal.close()

    world.run(main())


def test_a_journal_on_a_full_disk_opens_for_reading() -> None:
    world = SimulatedEnvironment(faults=DiskFaults(capacity_bytes=2 * SEGMENT_BYTES))

    async def fill() -> int:
        journal = await opened(world)
        count = 0
        while (await append(journal, 0, ONE))[1] is None:
            count += 1
        world.storage.kill()
        return count

    count = world.run(fill())

    async def look() -> None:
        journal = await opened(world)
        assert len((await read_all(journal))[0]) == count
        _, error = await append(journal, 0, ONE)
        assert type(error) is LogUnavailable
        world.storage.faults.capacity_bytes = None
        await asyncio.sleep(1.1)
        assert await append_durably(journal, 0, ONE) == count
        await journal.close()

    world.run(look())


def test_a_disk_that_fails_commits_for_long_does_not_fill_up_with_segments() -> None:
    world = SimulatedEnvironment()

    async def main() -> None:
        journal = await opened(world)
        await append_durably(journal, 0, ONE)
        # New files can be made; but whatever is committed fails.
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


def test_an_empty_folder_on_a_full_disk_cannot_be_opened() -> None:
    world = SimulatedEnvironment(faults=DiskFaults(capacity_bytes=100))

    async def main() -> None:
        with pytest.raises(LogUnavailable, match="No space left"):
            await world.journal().open()
        world.storage.faults.capacity_bytes = None
        journal = await opened(world)
        await journal.close()

    world.run(main())


def test_a_folder_that_cannot_be_used_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    world = RealDiskEnvironment(tmp_path / "file")

    async def main() -> None:
        with pytest.raises(
            LogUnavailable, match=r"^data\.dir=unused must be a writable directory: File exists$"
        ):
            await world.journal().open()

    world.run(main())


def test_a_read_error_is_said_and_passes(tmp_path: Path) -> None:
    world = SimulatedEnvironment()

    async def main() -> None:
        journal = await opened(world)
        await append_durably(journal, 0, ONE)
        world.storage.next_faults = ["read"]
        with pytest.raises(LogUnavailable, match="cannot be read"):
            await read_all(journal)
        assert len((await read_all(journal))[0]) == 1
        await journal.close()

    world.run(main())


def test_closing_in_trouble_answers_everybody() -> None:
    world = SimulatedEnvironment()

    async def main() -> None:
        journal = await opened(world)
        world.storage.next_faults = ["sync", "sync"]
        assert await errors_of_closing(journal) == {LogOutcomeUnknown}

    world.run(main())


def test_the_kernel_refusing_to_grow_files_is_survived(tmp_path: Path) -> None:
    """The real disk, with the one real fault that needs no rights: a limit on the size of files."""
    world = RealDiskEnvironment(tmp_path)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    large = 1 << 20

    def journal() -> Journal:
        return world.journal(segment_bytes=large)

    async def main() -> None:
        log = journal()
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
