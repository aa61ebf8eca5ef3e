"""The journal on a full file system: a small tmpfs, if the test may mount a tmpfs."""

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from coordinator.errors import LogUnavailable
from coordinator.log.journal import Journal, RealDisk
from tests.kafka.toolchain import are_all_required
from tests.unit.log.environments import STATE_PARTITIONS, append, append_durably, read_all

SEGMENT_BYTES = 256 << 10
RECORD = [(b"key", bytes(10_000))]


@pytest.fixture
def small_file_system(tmp_path: Path) -> Iterator[Path]:
    """Mount a file system of 1 MiB, and unmount it after the test."""
    mounted = sys.platform == "linux" and os.geteuid() == 0
    if mounted:
        command = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(tmp_path)]
        mounted = subprocess.run(command, capture_output=True, check=False).returncode == 0
    if not mounted:
        assert not are_all_required(), "only root may mount a file system"
        pytest.skip("only root may mount a file system")
    try:
        yield tmp_path
    finally:
        subprocess.run(["umount", "--lazy", str(tmp_path)], check=True)


def make_journal(folder: Path, sync: str) -> Journal:
    assert sync in ("always", "os")
    return Journal(
        folder,
        state_partitions=STATE_PARTITIONS,
        segment_bytes=SEGMENT_BYTES,
        sync=sync,
        disk=RealDisk(folder),
    )


async def write_until_full(log: Journal) -> int:
    """Append until an append is refused. Return the end offset."""
    while True:
        base_offset, error = await append(log, 0, RECORD)
        if error is not None:
            assert (base_offset, type(error)) == (log.end_offset(0), LogUnavailable)
            return base_offset


def fill_to_the_last_byte(file: Path) -> None:
    with file.open("wb", buffering=0) as ballast:
        while True:
            ballast.write(bytes(4096))


async def wait_until_healthy(log: Journal) -> None:
    async with asyncio.timeout(60):
        while log.health() is not None:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


@pytest.mark.slow
@pytest.mark.parametrize("sync", ["always", "os"])
async def test_full_disk_is_reported_and_writes_resume_when_space_is_free(
    small_file_system: Path, sync: str
) -> None:
    log = make_journal(small_file_system / "journal", sync)
    await log.open()
    ballast = small_file_system / "ballast"
    ballast.write_bytes(bytes(300 << 10))
    count = await write_until_full(log)
    assert "No space left on device" in str(log.health())
    assert len((await read_all(log))[0]) == count
    ballast.unlink()
    await wait_until_healthy(log)
    assert await append_durably(log, 0, RECORD) == count
    # Fill the disk again. Now only pruning by the journal frees space.
    count = await write_until_full(log)
    log.prune(0, count - 1)
    await wait_until_healthy(log)
    assert await append_durably(log, 0, RECORD) == count
    await log.close()


async def test_journal_on_a_full_disk_can_be_opened_and_read(small_file_system: Path) -> None:
    folder = small_file_system / "journal"
    log = make_journal(folder, "always")
    await log.open()
    count = await write_until_full(log)
    await log.close()
    # The disk has no space even for the process id in the lock file.
    with pytest.raises(OSError, match="No space"):
        fill_to_the_last_byte(small_file_system / "ballast")
    (folder / "lock").unlink()
    log = make_journal(folder, "always")
    await log.open()
    assert len((await read_all(log))[0]) == count
    count = await write_until_full(log)
    (small_file_system / "ballast").unlink()
    log.prune(0, count - 1)
    await wait_until_healthy(log)
    assert await append_durably(log, 0, RECORD) == count
    await log.close()
