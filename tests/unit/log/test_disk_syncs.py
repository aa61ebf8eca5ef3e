"""Check which files and folders a real disk syncs, and when, by recording the calls of fsync."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from coordinator import fastpath
from coordinator.log.journal.disk import RealDisk, write_durably


@pytest.fixture
def sync_checker(monkeypatch: pytest.MonkeyPatch) -> Callable[[Path], bool]:
    """Return a function that returns whether a path was synced since the last call for this path."""
    inodes: list[int] = []

    def wrap_sync(sync: Callable[[int], None]) -> Callable[[int], None]:
        def record_inode(descriptor: int) -> None:
            sync(descriptor)
            inodes.append(os.fstat(descriptor).st_ino)

        return record_inode

    monkeypatch.setattr(os, "fsync", wrap_sync(os.fsync))
    monkeypatch.setattr(os, "fdatasync", wrap_sync(os.fdatasync))

    def was_synced(path: Path) -> bool:
        inode = path.stat().st_ino
        found = inode in inodes
        inodes[:] = [other for other in inodes if other != inode]
        return found

    return was_synced


async def test_files_and_folder_entries_are_synced_before_success(
    tmp_path: Path, sync_checker: Callable[[Path], bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    # The compiled module syncs in the kernel, where the test cannot record calls.
    monkeypatch.setattr(fastpath, "compiled", None)
    folder = tmp_path / "made" / "by lock"
    disk = RealDisk(folder)
    disk.lock()
    assert sync_checker(tmp_path), "the directory entry of the new folder"
    assert sync_checker(folder.parent)
    await disk.prepare("a", 4096)
    assert sync_checker(folder / "a"), "the zeros of the file"
    assert sync_checker(folder), "the directory entry of the file"
    await write_durably(disk, "a", 0, b"committed")
    assert sync_checker(folder / "a")
    assert disk.write("a", 64, b"written", False, print)
    assert not sync_checker(folder / "a")
    await disk.sync("a")
    assert sync_checker(folder / "a")
    await disk.remove("a")
    assert sync_checker(folder), "the removal of the directory entry"
    disk.unlock()
