"""The contract of a disk, which the real and the simulated disk meet."""

import asyncio
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from coordinator.errors import LogLocked
from coordinator.log.journal.disk import Disk, RealDisk, write_durably
from tests.unit.log.environments import LogEnvironment, RealDiskEnvironment, SimulatedEnvironment

pytestmark = pytest.mark.run_with(fixture="log_environment")


@pytest.fixture(params=["real", "simulated"])
def log_environment(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[LogEnvironment]:
    if request.param == "simulated":
        yield SimulatedEnvironment()
    else:
        yield RealDiskEnvironment(tmp_path / "made" / "by lock")


async def test_prepared_file_contains_zeros(log_environment: LogEnvironment) -> None:
    disk = lock_disk(log_environment)
    await disk.prepare("b", 5000)
    await disk.prepare("a", 1 << 21)
    assert disk.names() == ["a", "b"]
    assert [disk.size("a"), disk.size("b")] == [1 << 21, 5000]
    assert await disk.read("b", 0, 9999) == bytes(5000)
    disk.unlock()


async def test_second_prepare_overwrites_the_file_with_zeros(log_environment: LogEnvironment) -> None:
    disk = lock_disk(log_environment)
    await disk.prepare("a", 4096)
    await write_durably(disk, "a", 10, b"old")
    await disk.prepare("a", 2048)
    assert await disk.read("a", 0, 9999) == bytes(2048)
    await write_durably(disk, "a", 10, b"new")
    assert await disk.read("a", 9, 5) == b"\0new\0"
    disk.unlock()


@pytest.mark.parametrize("sync", [True, False])
async def test_written_data_can_be_read(log_environment: LogEnvironment, sync: bool) -> None:
    disk = lock_disk(log_environment)
    await disk.prepare("a", 4096)
    await write_and_wait(disk, "a", 1000, b"twelve bytes", sync)
    assert await disk.read("a", 999, 14) == b"\0twelve bytes\0"
    assert disk.size("a") == 4096
    disk.unlock()


async def test_read_ends_at_the_end_of_the_file(log_environment: LogEnvironment) -> None:
    disk = lock_disk(log_environment)
    await disk.prepare("a", 100)
    assert await disk.read("a", 90, 50) == bytes(10)
    assert await disk.read("a", 100, 50) == b""
    disk.unlock()


async def test_another_process_reads_written_data(log_environment: LogEnvironment) -> None:
    disk = lock_disk(log_environment)
    await disk.prepare("a", 4096)
    await write_durably(disk, "a", 0, b"kept")
    disk.unlock()
    other = lock_disk(log_environment)
    assert other.names() == ["a"]
    assert await other.read("a", 0, 4) == b"kept"
    other.unlock()


async def test_second_process_cannot_lock_the_folder(log_environment: LogEnvironment) -> None:
    disk = lock_disk(log_environment)
    other = log_environment.disk()
    with pytest.raises(LogLocked) as caught:
        other.lock()
    assert caught.value.owner_pid is not None
    other.unlock()
    disk.unlock()
    disk.unlock()
    lock_disk(log_environment).unlock()


async def test_removed_file_does_not_exist_and_remove_may_be_repeated(
    log_environment: LogEnvironment,
) -> None:
    disk = lock_disk(log_environment)
    await disk.prepare("a", 4096)
    await write_durably(disk, "a", 0, b"x")
    await disk.remove("a")
    await disk.remove("a")
    assert disk.names() == []
    with pytest.raises(FileNotFoundError):
        await disk.read("a", 0, 1)
    disk.unlock()


async def test_operation_on_a_missing_file_raises_file_not_found(log_environment: LogEnvironment) -> None:
    disk = lock_disk(log_environment)
    for sync in (True, False):
        with pytest.raises(FileNotFoundError):
            await write_and_wait(disk, "missing", 0, b"x", sync)
    with pytest.raises(FileNotFoundError):
        await disk.sync("missing")
    with pytest.raises(FileNotFoundError):
        disk.size("missing")
    disk.unlock()


async def test_sync_of_an_existing_file_succeeds(log_environment: LogEnvironment) -> None:
    disk = lock_disk(log_environment)
    await disk.prepare("a", 4096)
    await disk.sync("a")
    disk.unlock()


async def write_and_wait(disk: Disk, name: str, position: int, data: bytes, sync: bool) -> None:
    told: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()
    is_written = disk.write(name, position, data, sync, told.set_result)
    assert not told.done(), "done was called from within write"
    if not is_written and (error := await told):
        raise error


def lock_disk(world: LogEnvironment) -> Disk:
    disk = world.disk()
    disk.lock()
    return disk


def test_journal_files_are_not_readable_by_other_users(tmp_path: Path) -> None:
    """Other users must not read group ids and offsets."""
    before = os.umask(0o022)

    async def run_test() -> None:
        disk = RealDisk(tmp_path / "journal")
        disk.lock()
        await disk.prepare("segment", 4096)
        await disk.replace("recovery-point", bytes(512))
        disk.unlock()

    try:
        asyncio.run(run_test())
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "journal").stat().st_mode) == 0o750
    modes = {stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "journal").iterdir()}
    assert modes == {0o640}


def test_unlocked_disk_changes_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process may own the folder; a file of the current folder may have the same name."""

    async def change_unlocked_disk() -> None:
        disk = RealDisk(tmp_path / "journal")
        disk.lock()
        await disk.prepare("segment", 4096)
        disk.unlock()
        for change in (disk.remove("segment"), disk.prepare("segment", 1), disk.replace("segment", b"x")):
            with pytest.raises(OSError, match="the journal is closed"):
                await change

    monkeypatch.chdir(tmp_path)
    (tmp_path / "segment").touch()
    asyncio.run(change_unlocked_disk())
    assert (tmp_path / "segment").stat().st_size == 0
    assert (tmp_path / "journal" / "segment").stat().st_size == 4096
