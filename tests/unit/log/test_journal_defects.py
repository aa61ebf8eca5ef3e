"""Exceptions other than OSError on the way to the disk are treated as disk errors."""

import asyncio
import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from coordinator.errors import LogOutcomeUnknown, LogUnavailable
from coordinator.log.journal import Journal, layout
from coordinator.log.journal.committer import ThreadCommitter, WriteCallback
from tests.simulation.disk import SimDisk
from tests.unit.log.environments import (
    SEGMENT_BYTES,
    RealDiskEnvironment,
    SimulatedEnvironment,
    append,
    append_durably,
)
from tests.unit.log.journals import append_errors_at_close, open_journal, read_offsets_after_kill

ONE = [(b"key", b"value" * 40)]
LARGE = [(b"key", bytes(3 * SEGMENT_BYTES))]


class RaisingDisk(SimDisk):
    """A disk that raises RuntimeError once for each operation in `due`.

    If `due` contains "tell", a write does not raise, but passes a MemoryError to its callback.
    """

    def __init__(self, world: "RaisingEnvironment") -> None:
        super().__init__(world.storage)
        self._due = world.due

    def _raise_if_due(self, operation: str) -> None:
        if operation in self._due:
            self._due.remove(operation)
            raise RuntimeError("can't start new thread")

    async def prepare(self, name: str, size: int) -> None:
        self._raise_if_due("prepare")
        await super().prepare(name, size)

    async def remove(self, name: str) -> None:
        self._raise_if_due("remove")
        await super().remove(name)

    async def sync(self, name: str) -> None:
        self._raise_if_due("sync")
        await super().sync(name)

    async def replace(self, name: str, data: bytes) -> None:
        self._raise_if_due("replace")
        await super().replace(name, data)

    def write(self, name: str, position: int, data: bytes, sync: bool, done: WriteCallback) -> None:
        self._raise_if_due("write")
        if "tell" in self._due:
            self._due.remove("tell")
            asyncio.get_running_loop().call_soon(done, MemoryError())
            return
        super().write(name, position, data, sync, done)


class RaisingEnvironment(SimulatedEnvironment):
    """An environment whose disks raise for the operations in `due`."""

    def __init__(self) -> None:
        super().__init__()
        self.due: list[str] = []

    def disk(self) -> RaisingDisk:
        return RaisingDisk(self)


@pytest.fixture(params=["always", "os"])
def sync_mode(request: pytest.FixtureRequest) -> str:
    mode: str = request.param
    return mode


async def open_with_spare(world: SimulatedEnvironment, sync: str) -> Journal:
    journal = await open_journal(world, sync)
    await append_durably(journal, 0, ONE)
    # Wait until the spare file exists.
    await asyncio.sleep(0.1)
    return journal


def traceback_messages(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return the log messages that have a traceback."""
    return [record.getMessage() for record in caplog.records if record.exc_info]


def raise_once(function: Callable[..., Any]) -> Callable[..., Any]:
    def raise_if_due(*args: Any) -> Any:
        nonlocal is_due
        if is_due:
            is_due = False
            raise MemoryError
        return function(*args)

    is_due = True
    return raise_if_due


@pytest.mark.parametrize("what", ["write", "tell", "encode"])
def test_commit_that_raises_once_is_retried_in_another_segment(
    what: str, sync_mode: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = RaisingEnvironment()

    async def main() -> None:
        journal = await open_with_spare(world, sync_mode)
        if what == "encode":
            monkeypatch.setattr(layout, "encode_frame", raise_once(layout.encode_frame))
        else:
            world.due.append(what)
        results = await asyncio.gather(*(append(journal, partition, ONE) for partition in range(3)))
        assert results == [(1, None), (0, None), (0, None)]
        assert journal.health() is None
        assert await append_durably(journal, 0, ONE) == 2
        await journal.close()

    world.run(main())
    (said,) = traceback_messages(caplog)
    assert "a commit failed" in said
    assert read_offsets_after_kill(world, sync_mode) == [0, 1, 2]


@pytest.mark.parametrize("due", [["write", "write"], ["tell", "tell"], ["write", "prepare"]])
def test_commit_that_raises_twice_has_an_unknown_outcome(due: list[str], sync_mode: str) -> None:
    world = RaisingEnvironment()

    async def main() -> None:
        journal = await open_with_spare(world, sync_mode)
        if "prepare" in due:
            journal._segments._spare = None
        world.due += due
        base_offset, error = await append(journal, 0, ONE)
        assert (base_offset, type(error)) == (1, LogOutcomeUnknown)
        assert "Error(" in str(journal.health())
        await asyncio.sleep(2.5)
        assert journal.health() is None
        assert await append_durably(journal, 0, ONE) == 1
        await journal.close()

    world.run(main())
    assert read_offsets_after_kill(world, sync_mode) == [0, 1]


@pytest.mark.parametrize("what", ["prepare", "write", "tell"])
def test_failed_creation_of_a_segment_is_retried(
    what: str, sync_mode: str, caplog: pytest.LogCaptureFixture
) -> None:
    world = RaisingEnvironment()

    async def main() -> None:
        journal = await open_with_spare(world, sync_mode)
        files = len(world.storage.files)
        world.due.append(what)
        # The append does not fit into the current segment.
        _, error = await append(journal, 0, LARGE)
        assert type(error) is LogUnavailable
        assert "no new segment can be made: " in str(error)
        assert "Error(" in str(error)
        assert journal.health() == str(error)
        # The file whose header may or may not have been written was removed.
        assert len(world.storage.files) == files - (what != "prepare")
        await asyncio.sleep(1.1)
        assert journal.health() is None
        assert await append_durably(journal, 0, LARGE) == 1
        await journal.close()

    world.run(main())
    (said,) = traceback_messages(caplog)
    assert said.startswith("the journal takes no writes: no new segment can be made: ")
    assert read_offsets_after_kill(world, sync_mode) == [0, 1]


@pytest.mark.parametrize("what", ["prepare", "write", "tell"])
def test_close_completes_all_appends_although_the_disk_raises(what: str, sync_mode: str) -> None:
    world = RaisingEnvironment()

    async def main() -> None:
        journal = await open_with_spare(world, sync_mode)
        journal._segments._spare = None
        world.due += ["write", what]
        assert await append_errors_at_close(journal) == {LogOutcomeUnknown}

    world.run(main())
    assert read_offsets_after_kill(world, sync_mode) == [0]


@pytest.mark.parametrize(
    ("what", "sync_mode", "message"),
    [
        ("sync", "os", "the end of the journal could not be marked"),
        ("replace", "always", "the journal's recovery point cannot be written"),
    ],
)
def test_failure_during_close_is_logged_and_the_folder_is_unlocked(
    what: str, sync_mode: str, message: str, caplog: pytest.LogCaptureFixture
) -> None:
    world = RaisingEnvironment()

    async def main() -> None:
        journal = await open_journal(world, sync_mode)
        await append_durably(journal, 0, ONE)
        world.due.append(what)
        await journal.close()

    world.run(main())
    (logged,) = traceback_messages(caplog)
    assert message in logged
    assert read_offsets_after_kill(world, sync_mode) == [0]


@pytest.mark.parametrize(("what", "sync_mode"), [("prepare", "always"), ("remove", "always"), ("sync", "os")])
def test_exception_in_a_background_operation_is_logged_and_retried(
    what: str, sync_mode: str, caplog: pytest.LogCaptureFixture
) -> None:
    world = RaisingEnvironment()

    async def main() -> None:
        journal = await open_with_spare(world, sync_mode)
        if what == "prepare":
            journal._segments._spare = None
        world.due.append(what)
        for _ in range(200):
            journal.prune(0, await append_durably(journal, 0, ONE))
        await asyncio.sleep(1.1)
        assert await append_durably(journal, 0, ONE) == 201
        await asyncio.sleep(0.1)
        assert journal._segments.are_retired_segments_durable() or what != "sync"
        # The current segment, its spare file, and one segment that is about to be removed.
        assert len(world.storage.files) <= 3
        await journal.close()

    world.run(main())
    assert len(traceback_messages(caplog)) == 1
    assert not world.due
    assert read_offsets_after_kill(world, sync_mode)[-1] == 201


def test_disk_error_is_logged_without_a_traceback(sync_mode: str, caplog: pytest.LogCaptureFixture) -> None:
    world = RaisingEnvironment()

    async def main() -> None:
        journal = await open_with_spare(world, sync_mode)
        world.storage.next_faults = ["write", "write"]
        _, error = await append(journal, 0, ONE)
        assert error is not None
        await journal.close()

    with caplog.at_level(logging.WARNING):
        world.run(main())
    assert "Input/output error" in caplog.text
    assert traceback_messages(caplog) == []


def test_committer_thread_survives_errors_other_than_oserror(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "coordinator.log.journal.committer.write_fully", raise_once(lambda descriptor, position, data: None)
    )
    committer = ThreadCommitter()

    async def commit_and_wait(descriptor: int) -> Exception | None:
        over: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()
        committer.commit(descriptor, 0, b"data", over.set_result)
        return await asyncio.wait_for(over, 10)

    with open(tmp_path / "file", "wb") as file:
        assert isinstance(asyncio.run(commit_and_wait(file.fileno())), MemoryError)
        assert asyncio.run(commit_and_wait(file.fileno())) is None
    committer.close()


async def test_no_thread_is_started_after_the_disk_is_locked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_thread(_: object) -> None:
        raise RuntimeError("can't start new thread")

    disk = RealDiskEnvironment(tmp_path).disk()
    disk.lock()
    monkeypatch.setattr(threading.Thread, "start", no_thread)
    await asyncio.gather(*(disk.prepare(str(number), 1 << 20) for number in range(5)))
    disk.unlock()
