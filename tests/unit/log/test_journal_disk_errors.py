"""Disk errors and other exceptions: the outcome of appends, the health of the journal, and its recovery.

A fault is an OSError of the simulated disk ("write", "sync", "prepare", ...). If its name begins with
"raise", a fault is another exception: a RuntimeError of a disk operation, a MemoryError that a write passes
to its callback ("raise done"), or a MemoryError while a frame is encoded ("raise encode").
"""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from coordinator.errors import LogOutcomeUnknown, LogUnavailable
from coordinator.log.journal import Journal, layout
from coordinator.log.journal.committer import WriteCallback
from tests.simulation.disk import DiskFaults, SimDisk
from tests.unit.log.environments import (
    SEGMENT_BYTES,
    RealDiskEnvironment,
    SimulatedEnvironment,
    append,
    append_durably,
    append_error,
    read_all,
)
from tests.unit.log.journals import append_errors_at_close, open_journal, read_offsets_after_kill

ONE = [(b"key", b"value" * 40)]
LARGE = [(b"key", bytes(3 * SEGMENT_BYTES))]


class RaisingDisk(SimDisk):
    """A disk that raises RuntimeError once for each operation in `due`."""

    def __init__(self, world: "FaultyEnvironment") -> None:
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

    def write(self, name: str, position: int, data: bytes, sync: bool, done: WriteCallback) -> bool:
        self._raise_if_due("write")
        if "done" in self._due:
            self._due.remove("done")
            asyncio.get_running_loop().call_soon(done, MemoryError())
            return False
        return super().write(name, position, data, sync, done)


class FaultyEnvironment(SimulatedEnvironment):
    """An environment whose disks fail once for each injected fault."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, seed: int = 1) -> None:
        super().__init__(seed)
        self.due: list[str] = []
        self._monkeypatch = monkeypatch

    def disk(self) -> RaisingDisk:
        return RaisingDisk(self)

    def inject_faults(self, *faults: str) -> None:
        for fault in faults:
            kind, _, operation = fault.rpartition(" ")
            if operation == "encode":
                self._monkeypatch.setattr(layout, "encode_frame", fail_first_call(layout.encode_frame))
            else:
                (self.due if kind else self.storage.next_faults).append(operation)


def fail_first_call(function: Callable[..., Any]) -> Callable[..., Any]:
    def raise_or_call(*args: Any) -> Any:
        nonlocal is_due
        if is_due:
            is_due = False
            raise MemoryError
        return function(*args)

    is_due = True
    return raise_or_call


@pytest.fixture(params=["always", "os"])
def sync_mode(request: pytest.FixtureRequest) -> str:
    mode: str = request.param
    return mode


@pytest.fixture
def faulty_environment(monkeypatch: pytest.MonkeyPatch) -> FaultyEnvironment:
    return FaultyEnvironment(monkeypatch)


async def open_journal_with_spare(world: SimulatedEnvironment, sync: str) -> Journal:
    journal = await open_journal(world, sync)
    await append_durably(journal, 0, ONE)
    # Wait until the spare file exists.
    await asyncio.sleep(0.1)
    return journal


def traceback_messages(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.exc_info]


def pair_with_sync_modes(*faults: str) -> list[tuple[str, str]]:
    """Return the faults with each sync mode, except failing syncs with mode `os`, which does not sync."""
    return [
        (each, mode) for each in faults for mode in ("always", "os") if (each[:4], mode) != ("sync", "os")
    ]


@pytest.mark.parametrize(
    ("fault", "sync_mode"), pair_with_sync_modes("write", "sync", "raise write", "raise done", "raise encode")
)
def test_commit_that_fails_once_is_retried_in_another_segment(
    fault: str,
    sync_mode: str,
    faulty_environment: FaultyEnvironment,
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def run_test() -> None:
        journal = await open_journal_with_spare(faulty_environment, sync_mode)
        faulty_environment.inject_faults(fault)
        results = await asyncio.gather(*(append(journal, partition, ONE) for partition in range(3)))
        assert results == [(1, None), (0, None), (0, None)]
        assert journal.health() is None
        assert await append_durably(journal, 0, ONE) == 2
        assert [offset for offset, _, _ in (await read_all(journal))[0]] == [0, 1, 2]
        await journal.close()

    faulty_environment.run(run_test())
    (message,) = [record for record in caplog.records if "a commit failed" in record.getMessage()]
    # An error of the disk needs no traceback.
    assert bool(message.exc_info) is fault.startswith("raise")
    assert read_offsets_after_kill(faulty_environment, sync_mode) == [0, 1, 2]


@pytest.mark.parametrize(
    ("faults", "sync_mode"),
    pair_with_sync_modes(
        "write+write",
        "sync+sync",
        "sync+prepare",
        "raise write+raise write",
        "raise done+raise done",
        "raise write+raise prepare",
    ),
)
def test_commit_that_fails_twice_has_an_unknown_outcome(
    faults: str, sync_mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for seed in range(5):
        world = FaultyEnvironment(monkeypatch, seed)

        async def run_test(world: FaultyEnvironment = world) -> None:
            journal = await open_journal_with_spare(world, sync_mode)
            if faults.endswith("prepare"):
                journal._segments._spare = None
            world.inject_faults(*faults.split("+"))
            base_offset, error = await append(journal, 0, ONE)
            assert (base_offset, type(error)) == (1, LogOutcomeUnknown)
            assert "takes no writes" in str(journal.health())
            # The journal can still be read, and returns only acknowledged records.
            assert [offset for offset, _, _ in (await read_all(journal))[0]] == [0]
            assert journal.end_offset(0) == 1
            # Appends are refused at once until the journal's own retry succeeds.
            assert type(await append_error(journal, 0, ONE)) is LogUnavailable
            await asyncio.sleep(2.5)
            assert journal.health() is None
            assert await append_durably(journal, 0, ONE) == 1

        world.run(run_test())
        assert read_offsets_after_kill(world, sync_mode) == [0, 1]


@pytest.mark.parametrize("fault", ["prepare", "raise prepare", "raise write", "raise done"])
def test_failed_creation_of_a_segment_is_retried(
    fault: str, sync_mode: str, faulty_environment: FaultyEnvironment, caplog: pytest.LogCaptureFixture
) -> None:
    async def run_test() -> None:
        journal = await open_journal_with_spare(faulty_environment, sync_mode)
        files, with_spare_bytes = len(faulty_environment.storage.files), journal.size_bytes()
        faulty_environment.inject_faults(fault)
        # The append does not fit into the current segment.
        _, error = await append(journal, 0, LARGE)
        assert type(error) is LogUnavailable
        assert "no new segment can be made: " in str(error)
        assert journal.health() == str(error)
        # The file whose header may or may not have been written was removed.
        assert len(faulty_environment.storage.files) == files - (fault != "raise prepare")
        assert journal.size_bytes() == with_spare_bytes - SEGMENT_BYTES
        await asyncio.sleep(1.1)
        assert journal.health() is None
        assert await append_durably(journal, 0, LARGE) == 1
        await journal.close()

    faulty_environment.run(run_test())
    messages = [record.getMessage() for record in caplog.records]
    assert messages[0].startswith("the journal takes no writes: no new segment can be made: ")
    assert read_offsets_after_kill(faulty_environment, sync_mode) == [0, 1]


@pytest.mark.parametrize("fault", ["raise prepare", "raise write", "raise done"])
def test_close_completes_all_appends_although_the_disk_raises(
    fault: str, sync_mode: str, faulty_environment: FaultyEnvironment
) -> None:
    async def run_test() -> None:
        journal = await open_journal_with_spare(faulty_environment, sync_mode)
        journal._segments._spare = None
        faulty_environment.inject_faults("raise write", fault)
        assert await append_errors_at_close(journal) == {LogOutcomeUnknown}

    faulty_environment.run(run_test())
    assert read_offsets_after_kill(faulty_environment, sync_mode) == [0]


@pytest.mark.parametrize(
    ("fault", "sync_mode", "message"),
    [
        ("raise sync", "os", "the end of the journal could not be marked"),
        ("raise replace", "always", "the journal's recovery point cannot be written"),
    ],
)
def test_failure_during_close_is_logged_and_the_folder_is_unlocked(
    fault: str,
    sync_mode: str,
    message: str,
    faulty_environment: FaultyEnvironment,
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def run_test() -> None:
        journal = await open_journal(faulty_environment, sync_mode)
        await append_durably(journal, 0, ONE)
        faulty_environment.inject_faults(fault)
        await journal.close()

    faulty_environment.run(run_test())
    (logged,) = traceback_messages(caplog)
    assert message in logged
    assert read_offsets_after_kill(faulty_environment, sync_mode) == [0]


@pytest.mark.parametrize(("what", "sync_mode"), [("prepare", "always"), ("remove", "always"), ("sync", "os")])
def test_exception_in_a_background_operation_is_logged_and_retried(
    what: str, sync_mode: str, faulty_environment: FaultyEnvironment, caplog: pytest.LogCaptureFixture
) -> None:
    async def run_test() -> None:
        journal = await open_journal_with_spare(faulty_environment, sync_mode)
        if what == "prepare":
            journal._segments._spare = None
        faulty_environment.inject_faults(f"raise {what}")
        for _ in range(200):
            journal.prune(0, await append_durably(journal, 0, ONE))
        await asyncio.sleep(1.1)
        assert await append_durably(journal, 0, ONE) == 201
        await asyncio.sleep(0.1)
        assert journal._segments.are_retired_segments_durable() or what != "sync"
        # The current segment, its spare file, and one segment that is about to be removed.
        assert len(faulty_environment.storage.files) <= 3
        await journal.close()

    faulty_environment.run(run_test())
    assert len(traceback_messages(caplog)) == 1
    assert not faulty_environment.due
    assert read_offsets_after_kill(faulty_environment, sync_mode)[-1] == 201


def test_segment_is_not_extended_if_a_next_header_may_be_on_disk() -> None:
    for seed in range(60):
        world = SimulatedEnvironment(seed, DiskFaults(write_s=0.001, sync_s=0.005))

        async def run_test(world: SimulatedEnvironment = world) -> None:
            journal = await open_journal(world)
            await append_durably(journal, 0, ONE)
            await append_durably(journal, 0, LARGE)
            await asyncio.sleep(0.1)
            world.storage.next_faults = ["sync", "remove"]
            assert type(await append_error(journal, 0, LARGE)) is LogUnavailable
            # The records of the first segment are no longer needed, so the journal may remove this segment.
            journal.prune(0, 1)
            await asyncio.sleep(world.storage.rng.random() * 0.05)
            world.storage.cut_power()

        world.run(run_test())
        assert read_offsets_after_kill(world)[-1] == 1


def test_append_that_waited_for_a_failed_commit_was_not_written() -> None:
    world = SimulatedEnvironment(faults=DiskFaults(sync_s=0.01))

    async def run_test() -> None:
        journal = await open_journal(world)
        await append_durably(journal, 0, ONE)
        world.storage.next_faults = ["sync", "sync"]
        first = asyncio.ensure_future(append(journal, 0, ONE))
        await asyncio.sleep(0.001)
        # The commit of the first append is in progress. After its first sync fails, the sync of the header of
        # the next segment fails, too.
        second = asyncio.ensure_future(append(journal, 1, ONE))
        _, first_error = await first
        _, second_error = await second
        assert type(first_error) is LogOutcomeUnknown
        assert type(second_error) is LogUnavailable

    world.run(run_test())
    assert read_offsets_after_kill(world) in ([0], [0, 1])


def test_repeated_commit_failures_do_not_fill_the_disk_with_segments() -> None:
    world = SimulatedEnvironment()

    async def run_test() -> None:
        journal = await open_journal(world)
        await append_durably(journal, 0, ONE)
        # Files can be created, but every commit fails.
        failing = DiskFaults(sync_fails_rate=0.0)
        world.storage.faults = failing
        for _ in range(60):
            if journal.health() is None:
                world.storage.next_faults = ["write", "write"]
                assert await append_error(journal, 0, ONE) is not None
            await asyncio.sleep(1)
        assert len(world.storage.files) < 12
        world.storage.next_faults = []
        await asyncio.sleep(40)
        assert await append_durably(journal, 0, ONE) == 1
        await journal.close()

    world.run(run_test())


def test_empty_folder_on_a_full_disk_cannot_be_opened() -> None:
    world = SimulatedEnvironment(faults=DiskFaults(capacity_bytes=100))

    async def run_test() -> None:
        with pytest.raises(LogUnavailable, match="No space left"):
            await world.journal().open()
        world.storage.faults.capacity_bytes = None
        journal = await open_journal(world)
        await journal.close()

    world.run(run_test())


def test_unusable_folder_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    world = RealDiskEnvironment(tmp_path / "file")

    async def run_test() -> None:
        with pytest.raises(
            LogUnavailable, match=r"^data\.dir=unused must be a writable directory: File exists$"
        ):
            await world.journal().open()

    world.run(run_test())


def test_read_error_is_reported_and_a_later_read_succeeds() -> None:
    world = SimulatedEnvironment()

    async def run_test() -> None:
        journal = await open_journal(world)
        await append_durably(journal, 0, ONE)
        world.storage.next_faults = ["read"]
        with pytest.raises(LogUnavailable, match="cannot be read"):
            await read_all(journal)
        assert len((await read_all(journal))[0]) == 1
        await journal.close()

    world.run(run_test())
