"""Recovery of a journal after a crash: torn tails, and missing or additional files."""

import asyncio
from pathlib import Path

import pytest

from coordinator.errors import ConfigError, LogLocked
from coordinator.log.journal import Journal, check_not_locked, layout
from coordinator.log.journal.disk import LOCK_NAME
from coordinator.log.journal.scan import segment_name
from tests.simulation.disk import DiskFaults
from tests.unit.log.environments import RealDiskEnvironment, SimulatedEnvironment, append_durably, read_all
from tests.unit.log.journals import (
    append_records,
    create_journal,
    encode_entry,
    expected_values,
    last_used_segment,
    make_record_value,
    open_damaged,
    read_values,
    reopen_and_append,
)


def test_partial_write_is_truncated_at_any_length() -> None:
    for cut_at in range(1, 400, 13):
        world = SimulatedEnvironment()
        create_journal(world, 10, "killed")
        name, data = last_used_segment(world)
        file = world.storage.files[name]
        frame = layout.encode_frame(1, layout.align_up(len(data)), 11, 10, 1, [encode_entry(10)])
        begin = layout.align_up(len(data))
        assert len(frame) > 300
        torn = frame[: min(cut_at, len(frame.rstrip(b"\0")) - 1)]
        file.shown[begin : begin + len(torn)] = torn
        assert reopen_and_append(world) == expected_values(10)
        assert reopen_and_append(world) == [*expected_values(10), b"one more"]


def test_partial_header_is_not_a_segment() -> None:
    world = SimulatedEnvironment()
    create_journal(world, 10, "killed")
    header = layout.encode_header(layout.SegmentHeader(2, "always", 9999, 11, 10, 1, (10, 0, 0, 0, 0)))
    for cut_at in range(1, len(header)):
        world.storage.files[segment_name(2)].shown[: len(header)] = header[:cut_at].ljust(len(header), b"\0")
        assert reopen_and_append(world)[:10] == expected_values(10)
        world = SimulatedEnvironment()
        create_journal(world, 10, "killed")


def test_recovered_commit_is_durable_before_it_is_served() -> None:
    """A process that is killed before its sync leaves a commit that is only in the page cache."""
    world = SimulatedEnvironment()

    async def append_without_sync() -> None:
        journal = world.journal()
        await journal.open()
        await append_records(journal, 3)
        world.storage.faults.sync_s = 5.0
        journal.append(0, [(b"key", make_record_value(3))], 1, lambda base_offset, error: None)
        await asyncio.sleep(0.01)
        world.storage.kill()
        world.storage.faults.sync_s = 0.0

    async def serve_then_lose_power() -> None:
        journal = world.journal()
        await journal.open()
        assert await read_values(journal) == expected_values(4)
        world.storage.cut_power()

    world.run(append_without_sync())
    world.run(serve_then_lose_power())
    assert reopen_and_append(world) == expected_values(4)


def test_newer_journal_format_is_refused_and_not_changed() -> None:
    world = SimulatedEnvironment()
    create_journal(world, 3, "closed")
    world.storage.files[segment_name(1)].shown[9] = 7
    error = open_damaged(world)
    assert "journal format 7" in error.found
    assert "release" in error.advice


def test_prepared_unused_file_is_ignored() -> None:
    world = SimulatedEnvironment()
    create_journal(world, 3, "killed")

    async def prepare_file() -> None:
        disk = world.disk()
        disk.lock()
        await disk.prepare(segment_name(2), 100)
        disk.unlock()

    world.run(prepare_file())
    assert reopen_and_append(world) == expected_values(3)


def test_unrelated_file_is_not_changed(tmp_path: Path) -> None:
    world = RealDiskEnvironment(tmp_path)
    (tmp_path / "notes.txt").write_text("mine")
    assert reopen_and_append(world) == []
    assert reopen_and_append(world) == [b"one more"]
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_interrupted_removal_of_segments_continues_after_a_restart() -> None:
    world = SimulatedEnvironment()

    async def prune_with_failing_removal() -> None:
        journal = world.journal()
        await journal.open()
        await append_records(journal, 60)
        world.storage.next_faults = ["remove"]
        journal.prune(0, 59)
        await asyncio.sleep(1)
        world.storage.kill()

    world.run(prune_with_failing_removal())
    assert segment_name(1) in world.storage.files

    async def reopen_journal() -> None:
        journal = world.journal()
        await journal.open()
        assert journal.end_offset(0) == 60
        assert (await read_values(journal))[-1] == make_record_value(59)
        assert len(await read_values(journal)) < 30
        await journal.close()

    world.run(reopen_journal())
    assert segment_name(1) not in world.storage.files


def test_another_number_of_state_partitions_is_refused() -> None:
    world = SimulatedEnvironment()
    create_journal(world, 3, "closed")

    async def run_test() -> None:
        journal = Journal(
            Path("unused"), state_partitions=6, segment_bytes=8192, sync="always", disk=world.disk()
        )
        with pytest.raises(ConfigError, match="must be 5, with which the journal") as caught:
            await journal.open()
        assert caught.value.setting == "share.coordinator.state.topic.num.partitions"

    world.run(run_test())
    assert reopen_and_append(world) == expected_values(3)


def test_recovery_can_be_cancelled_at_any_time() -> None:
    world = SimulatedEnvironment()
    create_journal(world, 10, "killed")
    world.storage.faults = DiskFaults(write_s=0.002, sync_s=0.002)

    async def cancel_recoveries() -> None:
        for step in range(60):
            journal = world.journal()
            opening = asyncio.create_task(journal.open())
            await asyncio.sleep(step / 2000)
            opening.cancel()
            await asyncio.wait({opening})
            await journal.close()

    world.run(cancel_recoveries())
    assert reopen_and_append(world) == expected_values(10)


@pytest.mark.parametrize("removes_lock_file", [False, True])
def test_journal_of_a_running_process_cannot_be_opened(tmp_path: Path, removes_lock_file: bool) -> None:
    world = RealDiskEnvironment(tmp_path)

    async def run_test() -> None:
        journal = world.journal()
        await journal.open()
        if removes_lock_file:
            (world.folder / LOCK_NAME).unlink()
            with pytest.raises(LogLocked, match="held by another process"):
                check_not_locked(world.folder)
        with pytest.raises(LogLocked, match="two coordinators cannot share"):
            await world.journal().open()
        await append_durably(journal, 0, [(b"key", b"still mine")])
        await journal.close()
        check_not_locked(world.folder)
        await world.journal().open()

    world.run(run_test())


def test_journal_whose_folder_is_moved_writes_no_file_of_its_successor(tmp_path: Path) -> None:
    world = RealDiskEnvironment(tmp_path / "journal")

    async def run_test() -> None:
        moved = world.journal()
        await moved.open()
        world.folder.rename(tmp_path / "moved")
        successor = world.journal()
        await successor.open()
        # The journals create segments with the same names.
        for journal, value in ((successor, b"a"), (moved, b"b")):
            for _ in range(6):
                await append_durably(journal, 0, [(b"key", value * 3000)])
            await journal.close()
        for folder, value in ((tmp_path / "moved", b"b"), (world.folder, b"a")):
            journal = RealDiskEnvironment(folder).journal()
            await journal.open()
            assert [record[2] for record in (await read_all(journal))[0]] == [value * 3000] * 6
            await journal.close()

    world.run(run_test())


def test_close_writes_nothing_if_nothing_was_appended() -> None:
    world = SimulatedEnvironment()
    create_journal(world, 3, "closed")
    before = last_used_segment(world)

    async def run_test() -> None:
        journal = world.journal()
        await journal.open()
        await journal.close()

    for _ in range(3):
        world.run(run_test())
    assert last_used_segment(world) == before
