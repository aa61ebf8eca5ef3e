"""Migrations from log to log: copies, interruptions and reports."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from coordinator.errors import LogError
from coordinator.log.base import AppendCallback, StateLog, Unit
from coordinator.operate.migration.fold import ComparableState
from coordinator.operate.migration.log_target import LogTarget
from coordinator.operate.migration.migrate import MigrationOptions, migrate_states
from coordinator.operate.migration.plan import MigrationAction
from coordinator.operate.migration.readers import JournalReader
from protocol.record_batch import encode_batch
from protocol.state_records import SharePartitionKey, StateRecord, encode_record
from tests.builders import TOPIC_ID
from tests.unit.log.environments import read_all
from tests.unit.log.kafka_logs import run_in_real_time, run_simulated
from tests.unit.migration.locations import (
    EXECUTE,
    SOURCE,
    SOURCE_PARTITIONS,
    TARGET,
    TARGET_PARTITIONS,
    MigrationLogs,
    ignore_progress,
    make_journal_target,
    make_key,
    make_sample_records,
    make_snapshot,
)

pytestmark = pytest.mark.run_with(function=run_simulated)


async def test_target_holds_the_state_of_the_source_with_another_partition_count() -> None:
    logs = MigrationLogs(make_sample_records())
    report = await logs.migrate()
    assert (report.is_successful, report.executed) == (True, True)
    assert report.plan.count_actions()[MigrationAction.COPY] == 19
    held = await logs.read_comparable_states(TARGET)
    assert held == await logs.read_comparable_states(SOURCE)
    assert len(held) == 19
    assert make_key(3) not in held
    assert len(logs.kafka.topics[TARGET]) == TARGET_PARTITIONS
    # Key 1 has an update. Key 2 was initialized again and keeps its greatest leader epoch.
    assert held[make_key(1)][:5] == (3, 6, 6, 101, 7)
    assert held[make_key(2)][:3] == (4, 0, 4)


async def test_snapshot_epoch_continues_and_creation_time_is_kept() -> None:
    logs = MigrationLogs(make_sample_records())
    await logs.migrate()
    state = (await logs.read_folded_log(TARGET)).states[make_key(4)]
    assert (state.snapshot_epoch, state.create_timestamp) == (7, 1_000)
    assert state.write_timestamp > 2_000


async def test_claims_of_a_migration_are_released() -> None:
    logs = MigrationLogs(make_sample_records())
    await logs.migrate()
    assert (await logs.read_folded_log(TARGET)).owners == {}


async def test_fenced_records_are_not_copied() -> None:
    logs = MigrationLogs()
    logs.make_topic("before", SOURCE_PARTITIONS)
    first, second = (
        logs.log("before", SOURCE_PARTITIONS, "first"),
        logs.log("before", SOURCE_PARTITIONS, "second"),
    )
    for log in (first, second):
        await log.open()
        for partition in range(SOURCE_PARTITIONS):
            await log.acquire_ownership(partition)
        await read_all(log, range(SOURCE_PARTITIONS))
    # After a claim, records without an owner epoch are ignored, like those of a fenced owner.
    logs.append_records("before", make_sample_records())
    report = await logs.migrate(source=logs.reader("before"))
    assert report.folded.states == {}
    assert "5 state partitions of the source have an owner, such as second of number 0: " in report.notes[0]


@pytest.mark.run_with(function=run_in_real_time)
async def test_state_is_migrated_into_a_journal_and_back(tmp_path: Path) -> None:
    logs, folder = MigrationLogs(make_sample_records()), tmp_path / "data"
    assert (await logs.migrate(target=make_journal_target(folder))).is_successful
    report = await logs.migrate(source=JournalReader(folder))
    assert report.is_successful
    assert await logs.read_comparable_states(TARGET) == await logs.read_comparable_states(SOURCE)
    other = tmp_path / "other"
    assert (await logs.migrate(source=JournalReader(folder), target=make_journal_target(other))).is_successful


async def test_large_state_is_written_in_many_appends() -> None:
    logs = MigrationLogs(make_sample_records(3_000))
    shown: list[tuple[str, int, int]] = []
    report = await migrate_states(
        logs.reader(), logs.target(), EXECUTE, lambda *progress: shown.append(progress)
    )
    assert report.is_successful
    written = [done for what, done, total in shown if what == "writing" and total == 2_999]
    assert written == sorted(written)
    assert len(written) >= TARGET_PARTITIONS
    assert written[-1] == 2_999


@pytest.mark.run_with(function=run_in_real_time)
async def test_dry_run_writes_nothing(tmp_path: Path) -> None:
    logs, folder = MigrationLogs(make_sample_records()), tmp_path / "data"
    report = await logs.migrate(MigrationOptions())
    assert (report.executed, report.plan.count_actions()[MigrationAction.COPY]) == (False, 19)
    assert TARGET not in logs.kafka.topics
    logs.make_topic(TARGET, TARGET_PARTITIONS)
    await logs.migrate(MigrationOptions())
    assert logs.count_produce_requests() == 0
    await logs.migrate(MigrationOptions(), target=make_journal_target(folder))
    assert not folder.exists()


async def test_state_that_the_target_already_has_is_not_written_again() -> None:
    logs = MigrationLogs(make_sample_records())
    await logs.migrate()
    produced = logs.count_produce_requests()
    report = await logs.migrate()
    assert report.is_successful
    assert report.plan.count_actions()[MigrationAction.ALREADY_PRESENT] == 19
    assert logs.count_produce_requests() == produced


def make_log_fail(
    log: StateLog, appends: int = 1 << 30, tampered: SharePartitionKey | None = None
) -> StateLog:
    """Let a log fail after a number of appends, or replace the value of one key."""
    append = log.append
    appends_left = appends

    def fail_append(
        state_partition: int,
        records: Sequence[tuple[bytes, bytes | None]],
        timestamp_ms: int,
        done: AppendCallback,
        units: Sequence[Unit] = (),
    ) -> None:
        nonlocal appends_left
        appends_left -= 1
        if appends_left < 0:
            asyncio.get_running_loop().call_soon(done, 0, LogError("the power went"))
            return
        if tampered is not None:
            other = encode_record(StateRecord(tampered, make_snapshot(5, start_offset=499)))
            records = [other if other[0] == record[0] else record for record in records]
        append(state_partition, records, timestamp_ms, done)

    log.append = fail_append  # type: ignore[method-assign]
    return log


def make_failing_target(logs: MigrationLogs, **how: Any) -> LogTarget:
    target = logs.target()
    make_log = target._make_log
    target._make_log = lambda partitions: make_log_fail(make_log(partitions), **how)
    return target


async def test_interrupted_migration_continues_where_it_stopped() -> None:
    logs = MigrationLogs(make_sample_records())
    with pytest.raises(LogError, match="the power went"):
        await logs.migrate(target=make_failing_target(logs, appends=1))
    there = len(await logs.read_comparable_states(TARGET))
    assert 0 < there < 19
    report = await logs.migrate()
    assert report.is_successful
    counts = report.plan.count_actions()
    assert (counts[MigrationAction.ALREADY_PRESENT], counts[MigrationAction.COPY]) == (there, 19 - there)
    assert await logs.read_comparable_states(TARGET) == await logs.read_comparable_states(SOURCE)


async def test_verification_reports_a_state_that_differs_from_the_source() -> None:
    logs = MigrationLogs(make_sample_records())
    report = await logs.migrate(target=make_failing_target(logs, tampered=make_key(5)))
    assert not report.is_successful
    assert [different.key for different in report.different] == [make_key(5)]
    assert report.different[0].what == "start offset 499, not 500"


async def test_other_record_types_are_counted_and_misplaced_records_are_named() -> None:
    logs = MigrationLogs(make_sample_records())
    partitions = logs.kafka.topics[SOURCE]
    partitions[0].append(encode_batch(0, 1, [(b"\x00\x09future", b"")]))
    stray = encode_record(StateRecord(SharePartitionKey("stray", TOPIC_ID, 1), make_snapshot(1)))
    for partition in partitions:
        partition.append(encode_batch(0, 1, [stray]))
    report = await logs.migrate()
    assert report.is_successful
    assert report.notes[0] == "1 records of unknown types in the source are not copied"
    assert report.notes[1].startswith("not copied, because they are in a wrong state partition: 4 ")


@pytest.mark.run_with(function=run_in_real_time)
async def test_reading_a_journal_does_not_change_it(tmp_path: Path) -> None:
    logs, folder = MigrationLogs(make_sample_records()), tmp_path / "data"
    await logs.migrate(target=make_journal_target(folder))
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    reader = JournalReader(folder)
    folded = await reader.fold(ignore_progress)
    assert folded is not None
    assert folded.comparable_states() == await logs.read_comparable_states(SOURCE)
    assert await reader.end_offsets() == folded.ends
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


async def test_unreadable_state_equals_no_readable_state() -> None:
    state = (await MigrationLogs(make_sample_records()).read_folded_log(SOURCE)).states[make_key(4)]
    assert ComparableState.from_state(state) != ComparableState.from_state(
        msgspec.structs.replace(state, unreadable="new")
    )
