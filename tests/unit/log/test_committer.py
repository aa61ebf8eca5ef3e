"""The two committers of the journal: with kernel AIO, and with a thread."""

import asyncio
import errno
import gc
import os
import resource
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from coordinator import fastpath
from coordinator.errors import LogUnavailable
from coordinator.log.journal.committer import (
    Committer,
    KernelCommitter,
    ThreadCommitter,
    new_committer,
    write_fully,
)
from coordinator.log.journal.disk import RealDisk
from tests.kafka.toolchain import are_all_required

has_kernel = sys.platform == "linux" and fastpath.compiled is not None
assert has_kernel or not are_all_required(), "the compiled module was not built"
kernel_only = pytest.mark.skipif(not has_kernel, reason="no compiled module: make install with a C compiler")
KINDS: list[Callable[[], Committer]] = [ThreadCommitter, *([KernelCommitter] if has_kernel else [])]


@pytest.fixture(params=KINDS)
def committer(request: pytest.FixtureRequest) -> Iterator[Committer]:
    committer = request.param()
    yield committer
    committer.close()


@pytest.fixture
def file_path(tmp_path: Path) -> Path:
    path = tmp_path / "file"
    path.write_bytes(bytes(20))
    return path


def test_partial_writes_are_continued(file_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    descriptor = os.open(file_path, os.O_RDWR)
    pwrite = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda file, data, position: pwrite(file, data[:3], position))
    write_fully(descriptor, 2, b"abcdefgh")
    assert file_path.read_bytes() == b"\0\0abcdefgh".ljust(20, b"\0")
    written = iter([3, 1, 0])
    monkeypatch.setattr(os, "pwrite", lambda file, data, position: next(written))
    with pytest.raises(OSError, match="only part of a write"):
        write_fully(descriptor, 0, b"abcdefgh")
    os.close(descriptor)


async def commit_and_wait(
    committer: Committer, descriptor: int, position: int, data: bytes
) -> Exception | None:
    over: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()
    committer.commit(descriptor, position, data, over.set_result)
    assert not over.done(), "done was called from within commit"
    return await over


def test_committed_data_is_in_the_file(committer: Committer, file_path: Path) -> None:
    descriptor = os.open(file_path, os.O_RDWR)

    async def run_test() -> None:
        assert await commit_and_wait(committer, descriptor, 3, b"one") is None
        assert await commit_and_wait(committer, descriptor, 10, b"another") is None

    # Use a new event loop for each run, as command-line tools do.
    asyncio.run(run_test())
    asyncio.run(run_test())
    os.close(descriptor)
    assert file_path.read_bytes() == bytes(3) + b"one" + bytes(4) + b"another" + bytes(3)


@pytest.mark.parametrize("fault", ["write", "sync"])
async def test_failure_reports_its_errno_and_the_next_write_succeeds(
    fault: str, committer: Committer, file_path: Path
) -> None:
    # /dev/null accepts writes, but cannot be synced.
    broken = os.open(file_path, os.O_RDONLY) if fault == "write" else os.open("/dev/null", os.O_RDWR)
    descriptor = os.open(file_path, os.O_RDWR)
    error = await commit_and_wait(committer, broken, 0, b"no")
    assert isinstance(error, OSError)
    assert error.errno == (errno.EBADF if fault == "write" else errno.EINVAL)
    assert await commit_and_wait(committer, descriptor, 0, b"yes") is None
    os.close(broken)
    os.close(descriptor)
    assert file_path.read_bytes() == b"yes" + bytes(17)  # noqa: ASYNC240 - the loop has nothing else to do


async def test_each_write_calls_its_own_callback_once(committer: Committer, file_path: Path) -> None:
    descriptor = os.open(file_path, os.O_RDWR)
    told = []
    for turn in range(200):
        over: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def on_write_done(error: OSError | None, turn: int = turn, over: asyncio.Future[None] = over) -> None:
            told.append((turn, error))
            over.set_result(None)

        committer.commit(descriptor, turn % 20, b"x", on_write_done)
        await over
    await asyncio.sleep(0)
    os.close(descriptor)
    assert told == [(turn, None) for turn in range(200)]


def open_files_and_aio_contexts() -> tuple[set[str], int]:
    """Return the open file descriptors, and the number of kernel AIO contexts."""
    return set(os.listdir("/proc/self/fd")), Path("/proc/self/maps").read_text().count("/[aio]")


@pytest.mark.slow
@kernel_only
def test_close_and_collection_release_descriptors_and_aio_contexts() -> None:
    files, queues = open_files_and_aio_contexts()
    committer: KernelCommitter | None = KernelCommitter()
    assert open_files_and_aio_contexts()[0] > files
    assert open_files_and_aio_contexts()[1] == queues + 1
    assert committer is not None
    committer.close()
    committer.close()
    assert open_files_and_aio_contexts() == (files, queues)
    committer = KernelCommitter()
    committer = None
    gc.collect()
    assert open_files_and_aio_contexts() == (files, queues)


@kernel_only
def test_thread_syncs_if_kernel_aio_is_unavailable(file_path: Path) -> None:
    """The limit on open files prevents an eventfd, as on a system without eventfd."""
    committer = new_committer()
    assert isinstance(committer, KernelCommitter)
    committer.close()
    descriptor = os.open(file_path, os.O_RDWR)
    allowed = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, allowed[1]))
    try:
        instead = new_committer()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, allowed)
    assert isinstance(instead, ThreadCommitter)
    assert asyncio.run(commit_and_wait(instead, descriptor, 0, b"thread")) is None
    instead.close()
    os.close(descriptor)
    assert file_path.read_bytes()[:6] == b"thread"


def fail_to_start(_: object) -> None:
    raise RuntimeError("can't start new thread")


def test_folder_lock_is_released_if_no_thread_can_be_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fastpath, "compiled", None)
    disk = RealDisk(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", fail_to_start)
        with pytest.raises(LogUnavailable, match="can't start new thread; allow more threads"):
            disk.lock()
    disk.lock()
    disk.unlock()


def test_committer_thread_survives_errors_other_than_oserror(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def raise_memory_error(descriptor: int, position: int, data: bytes) -> None:
        raise MemoryError

    committer = ThreadCommitter()
    with open(tmp_path / "file", "wb") as file:
        with monkeypatch.context() as patch:
            patch.setattr("coordinator.log.journal.committer.write_fully", raise_memory_error)
            error = asyncio.run(commit_and_wait(committer, file.fileno(), 0, b"data"))
        assert isinstance(error, MemoryError)
        assert asyncio.run(commit_and_wait(committer, file.fileno(), 0, b"data")) is None
    committer.close()


async def test_no_thread_is_started_after_the_disk_is_locked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = RealDisk(tmp_path)
    disk.lock()
    monkeypatch.setattr(threading.Thread, "start", fail_to_start)
    await asyncio.gather(*(disk.prepare(str(number), 1 << 20) for number in range(5)))
    disk.unlock()
