"""What a real disk syncs, and when: no test can have the machine lose power, so the calls are noted."""

import asyncio
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from coordinator import fastpath
from coordinator.log.journal.disk import RealDisk, write_durably


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> Callable[[Path], bool]:
    """Tell whether a file or a folder was synced since this was asked of it last."""
    inodes: list[int] = []

    def noting(sync: Callable[[int], None]) -> Callable[[int], None]:
        def noted(descriptor: int) -> None:
            sync(descriptor)
            inodes.append(os.fstat(descriptor).st_ino)

        return noted

    monkeypatch.setattr(os, "fsync", noting(os.fsync))
    monkeypatch.setattr(os, "fdatasync", noting(os.fdatasync))

    def was_synced(path: Path) -> bool:
        inode = path.stat().st_ino
        found = inode in inodes
        inodes[:] = [other for other in inodes if other != inode]
        return found

    return was_synced


def test_files_and_their_names_are_durable_when_the_disk_says_so(
    tmp_path: Path, synced: Callable[[Path], bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        # The compiled module has the kernel sync, which nobody here could note.
        monkeypatch.setattr(fastpath, "compiled", None)
        folder = tmp_path / "made" / "by lock"
        disk = RealDisk(folder)
        disk.lock()
        assert synced(tmp_path), "the name of the folder in it"
        assert synced(folder.parent)
        await disk.prepare("a", 4096)
        assert synced(folder / "a"), "its zeros"
        assert synced(folder), "its name"
        await write_durably(disk, "a", 0, b"committed")
        assert synced(folder / "a")
        assert disk.put("a", 64, b"written")
        assert not synced(folder / "a")
        await disk.sync("a")
        assert synced(folder / "a")
        await disk.remove("a")
        assert synced(folder), "that its name is gone"
        disk.unlock()

    asyncio.run(scenario())
