"""Both threads that write with a sync: the compiled one and the one in Python."""

import asyncio
import errno
import gc
import os
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path

import pytest

from coordinator import hot
from coordinator.log.journal.committer import Committer, CompiledCommitter, ThreadCommitter
from coordinator.log.journal.disk import RealDisk

KINDS = [ThreadCommitter]
if hot.compiled is not None:
    KINDS.append(CompiledCommitter)  # type: ignore[arg-type]


@pytest.fixture(params=KINDS)
def committer(request: pytest.FixtureRequest) -> Iterator[Committer]:
    committer = request.param()
    yield committer
    committer.close()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "file"
    path.write_bytes(bytes(20))
    return path


async def commit(committer: Committer, descriptor: int, position: int, data: bytes) -> OSError | None:
    over: asyncio.Future[OSError | None] = asyncio.get_running_loop().create_future()
    committer.commit(descriptor, position, data, over.set_result)
    assert not over.done(), "done was called from within commit"
    return await over


def test_what_is_committed_is_in_the_file(committer: Committer, path: Path) -> None:
    descriptor = os.open(path, os.O_RDWR)

    async def main() -> None:
        assert await commit(committer, descriptor, 3, b"one") is None
        assert await commit(committer, descriptor, 10, b"another") is None

    # An event loop of its own each time, as tools have it.
    asyncio.run(main())
    asyncio.run(main())
    os.close(descriptor)
    assert path.read_bytes() == bytes(3) + b"one" + bytes(4) + b"another" + bytes(3)


def test_a_write_that_fails_says_why_and_the_next_one_goes_on(committer: Committer, path: Path) -> None:
    read_only, descriptor = os.open(path, os.O_RDONLY), os.open(path, os.O_RDWR)

    async def main() -> None:
        error = await commit(committer, read_only, 0, b"no")
        assert error is not None
        assert error.errno == errno.EBADF
        assert await commit(committer, descriptor, 0, b"yes") is None

    asyncio.run(main())
    os.close(read_only)
    os.close(descriptor)
    assert path.read_bytes() == b"yes" + bytes(17)


@pytest.mark.parametrize("kind", KINDS[1:])
def test_the_thread_has_a_share_in_what_it_writes(kind: type[CompiledCommitter]) -> None:
    committer: CompiledCommitter | None = kind()
    held = weakref.ref(committer)
    committer = None
    gc.collect()
    committer = held()
    assert committer is not None, "the thread would read memory that is gone"
    committer.close()


@pytest.mark.parametrize("kind", KINDS[1:])
def test_who_cannot_ask_is_told(kind: type[CompiledCommitter], path: Path) -> None:
    committer = kind()
    descriptor = os.open(path, os.O_RDWR)

    async def main() -> None:
        ask, committer._ask = committer._ask, descriptor_that_takes_nothing
        error = await commit(committer, descriptor, 0, b"no")
        assert error is not None
        assert error.errno == errno.EBADF
        committer._ask = ask
        assert await commit(committer, descriptor, 0, b"yes") is None

    descriptor_that_takes_nothing = os.open(path, os.O_RDONLY)
    asyncio.run(main())
    committer.close()
    os.close(descriptor)
    os.close(descriptor_that_takes_nothing)
    assert path.read_bytes()[:3] == b"yes"


@pytest.mark.parametrize("kind", KINDS[1:])
def test_files_are_closed_again_if_no_thread_can_be_started(
    kind: type[CompiledCommitter], monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_thread(_: object) -> None:
        raise RuntimeError("can't start new thread")

    before = set(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else set()
    monkeypatch.setattr(threading.Thread, "start", no_thread)
    with pytest.raises(RuntimeError):
        kind()
    after = set(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else set()
    assert after == before


@pytest.mark.parametrize("kind", KINDS[1:])
def test_the_thread_ends_though_somebody_else_could_ask_it(kind: type[CompiledCommitter]) -> None:
    committer = kind()
    # As a process has it that was forked off.
    other = os.dup(committer._ask)
    closing = threading.Thread(target=committer.close, daemon=True)
    closing.start()
    closing.join(60)
    os.close(other)
    assert not closing.is_alive()


def test_a_folder_is_let_go_of_if_no_thread_can_be_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_thread(_: object) -> None:
        raise RuntimeError("can't start new thread")

    disk = RealDisk(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", no_thread)
        with pytest.raises(RuntimeError):
            disk.lock()
    disk.lock()
    disk.unlock()
