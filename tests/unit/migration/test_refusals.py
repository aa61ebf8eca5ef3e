"""Migrations that are refused to protect state, and the options that allow them."""

from pathlib import Path
from typing import Any

import pytest

from coordinator.errors import LogFenced, LogLocked
from coordinator.operate.migration.fold import MigrationRefused
from coordinator.operate.migration.log_target import LogTarget
from coordinator.operate.migration.migrate import MigrationOptions
from coordinator.operate.migration.plan import (
    LookupResult,
    MigrationAction,
    MigrationDifference,
    MigrationPlan,
)
from coordinator.operate.migration.readers import JournalReader
from coordinator.shard.state import next_snapshot
from protocol.record_batch import encode_batch
from protocol.routing import state_partition
from protocol.state_records import StateRecord, encode_record
from tests.unit.log.environments import append_durably, append_error, read_all
from tests.unit.log.kafka_logs import run_in_real_time, run_simulated
from tests.unit.migration.locations import (
    EXECUTE,
    SOURCE,
    SOURCE_PARTITIONS,
    TARGET,
    TARGET_PARTITIONS,
    MigrationLogs,
    make_journal,
    make_journal_target,
    make_key,
    make_sample_records,
    make_snapshot,
)

pytestmark = pytest.mark.run_with(function=run_simulated)


async def test_different_target_state_is_refused_unless_replace_is_given() -> None:
    logs = MigrationLogs(make_sample_records())
    logs.make_topic(TARGET, TARGET_PARTITIONS)
    disconnected = make_key(90, "gone")
    # The target has greater epochs than the source; the replacement must lower them.
    newer = make_snapshot(4, snapshot_epoch=40, leader_epoch=40)
    logs.append_records(
        TARGET, [StateRecord(make_key(4), newer), StateRecord(disconnected, make_snapshot(90))]
    )
    for options in (MigrationOptions(), EXECUTE):
        with pytest.raises(
            MigrationRefused, match=rf"2 share-partitions \({make_key(4)}, {disconnected}\).*--replace"
        ):
            await logs.migrate(options)
    assert logs.count_produce_requests() == 0
    report = await logs.migrate(MigrationOptions(execute=True, replace=True))
    assert report.is_successful
    counts = report.plan.count_actions()
    assert (
        counts[MigrationAction.REPLACE],
        counts[MigrationAction.DELETE],
        counts[MigrationAction.COPY],
    ) == (1, 1, 18)
    assert await logs.read_comparable_states(TARGET) == await logs.read_comparable_states(SOURCE)


async def test_owned_target_is_refused_until_it_is_released() -> None:
    logs = MigrationLogs(make_sample_records())
    owner = logs.log(TARGET, TARGET_PARTITIONS, "kafka-7:9095")
    await owner.open()
    for partition in range(TARGET_PARTITIONS):
        await owner.acquire_ownership(partition)
    await read_all(owner, range(TARGET_PARTITIONS))
    with pytest.raises(MigrationRefused, match=r"3 state partitions .* have an owner, such as kafka-7:9095"):
        await logs.migrate()
    for partition in range(TARGET_PARTITIONS):
        await owner.release(partition)
    assert (await logs.migrate()).is_successful


async def test_owner_that_died_is_fenced_by_take_over() -> None:
    logs = MigrationLogs(make_sample_records())
    zombie = logs.log(TARGET, TARGET_PARTITIONS, "kafka-7:9095")
    await zombie.open()
    await zombie.acquire_ownership(1)
    await read_all(zombie, range(TARGET_PARTITIONS))
    await append_durably(zombie, 1, [(b"\x7f\x00", None)])
    report = await logs.migrate(MigrationOptions(execute=True, take_over=True))
    assert report.is_successful
    assert isinstance(
        await append_error(zombie, 1, [encode_record(StateRecord(make_key(1), None))]), LogFenced
    )
    assert await logs.read_comparable_states(TARGET) == await logs.read_comparable_states(SOURCE)


@pytest.mark.run_with(function=run_in_real_time)
async def test_journal_of_a_running_coordinator_is_refused_as_source_and_target(tmp_path: Path) -> None:
    logs, folder = MigrationLogs(make_sample_records()), tmp_path / "data"
    assert (await logs.migrate(target=make_journal_target(folder))).is_successful
    logs.append_records(SOURCE, [StateRecord(make_key(50), make_snapshot(50))])
    coordinator = make_journal(folder)
    await coordinator.open()
    messages = set()
    for options in (EXECUTE, MigrationOptions()):
        with pytest.raises(LogLocked) as caught:
            await logs.migrate(options, target=make_journal_target(folder))
        messages.add(str(caught.value))
        with pytest.raises(LogLocked) as caught:
            await logs.migrate(options, source=JournalReader(folder))
        messages.add(str(caught.value))
    assert len(messages) == 1
    assert logs.count_produce_requests() == 0
    await coordinator.close()
    assert (await logs.migrate(target=make_journal_target(folder))).is_successful


@pytest.mark.run_with(function=run_in_real_time)
async def test_dry_run_neither_creates_nor_keeps_a_lock(tmp_path: Path) -> None:
    logs, folder = MigrationLogs(make_sample_records()), tmp_path / "data"
    assert (await logs.migrate(target=make_journal_target(folder))).is_successful
    logs.append_records(SOURCE, [StateRecord(make_key(50), make_snapshot(50))])
    for _ in range(2):
        before = {file.name: file.stat().st_mtime_ns for file in folder.iterdir()}
        await logs.migrate(MigrationOptions(), target=make_journal_target(folder))
        await logs.migrate(
            MigrationOptions(), source=JournalReader(folder), target=make_journal_target(tmp_path / "new")
        )
        assert {file.name: file.stat().st_mtime_ns for file in folder.iterdir()} == before
        # A copy of a journal has no lock file.
        (folder / "lock").unlink(missing_ok=True)
    assert not (tmp_path / "new").exists()
    assert (await logs.migrate(target=make_journal_target(folder))).is_successful


class SourceChangingTarget(LogTarget):
    """A target that writes to the source during its lookup with the given number."""

    def __init__(self, logs: MigrationLogs, records: list[StateRecord], number: int) -> None:
        vars(self).update(vars(logs.target()))
        self._changed_logs = logs
        self._added_records = records
        self._lookups_left = number

    async def lookup(self, wanted: Any, progress: Any) -> LookupResult:
        self._lookups_left -= 1
        if self._lookups_left == 0:
            self._changed_logs.append_records(SOURCE, self._added_records)
        return await super().lookup(wanted, progress)


@pytest.mark.parametrize(("number", "written"), [(1, False), (2, True)])
async def test_changing_source_is_refused(number: int, written: bool) -> None:
    logs = MigrationLogs(make_sample_records())
    target = SourceChangingTarget(
        logs, [StateRecord(make_key(6), make_snapshot(6, start_offset=601))], number
    )
    with pytest.raises(MigrationRefused, match=rf"1 share-partitions \({make_key(6)}\).*still active on it"):
        await logs.migrate(target=target)
    assert (TARGET in logs.kafka.topics) == written


class MissingTopicTarget(LogTarget):
    """A target with state of a topic, that of make_key(4), which its cluster no longer has."""

    def __init__(self, logs: MigrationLogs) -> None:
        vars(self).update(vars(logs.target()))

    async def lookup(self, wanted: Any, progress: Any) -> LookupResult:
        lookup = await super().lookup(wanted, progress)
        return lookup._replace(unknown_topics=frozenset({make_key(4)} & set(wanted)))

    async def apply_plan(self, states: Any, plan_for: Any, progress: Any) -> list[MigrationDifference]:
        def make_plan(lookup: LookupResult) -> MigrationPlan:
            return plan_for(lookup._replace(unknown_topics=frozenset({make_key(4)})))  # type: ignore[no-any-return]

        return await super().apply_plan(states, make_plan, progress)


async def test_omitted_share_partition_is_not_a_difference() -> None:
    logs = MigrationLogs(make_sample_records())
    logs.make_topic(TARGET, TARGET_PARTITIONS)
    logs.append_records(TARGET, [StateRecord(make_key(4), make_snapshot(4, start_offset=7))])
    options = MigrationOptions(execute=True, leave_out_unknown_topics=True)
    report = await logs.migrate(options, target=MissingTopicTarget(logs))
    assert report.plan.keys_with_action(MigrationAction.OMIT) == [make_key(4)]
    assert report.different == []


async def test_cold_snapshot_is_not_a_change_of_the_source() -> None:
    logs = MigrationLogs(make_sample_records())
    again = next_snapshot((await logs.read_folded_log(SOURCE)).states[make_key(6)], now_ms=9)
    target = SourceChangingTarget(logs, [StateRecord(make_key(6), again)], 1)
    assert (await logs.migrate(target=target)).is_successful


async def test_unreadable_state_is_refused() -> None:
    logs = MigrationLogs(make_sample_records())
    key_bytes, _ = encode_record(StateRecord(make_key(7), make_snapshot(7)))
    partition = logs.kafka.topics[SOURCE][state_partition(make_key(7), SOURCE_PARTITIONS)]
    partition.append(encode_batch(0, 1, [(key_bytes, b"\0\x09new")]))
    with pytest.raises(MigrationRefused, match="a newer release wrote the state of 1 share-partitions"):
        await logs.migrate()


@pytest.mark.run_with(function=run_in_real_time)
async def test_missing_source_is_refused(tmp_path: Path) -> None:
    logs = MigrationLogs()
    for source in (
        logs.reader("nothing"),
        JournalReader(tmp_path / "missing"),
        JournalReader(tmp_path),
    ):
        with pytest.raises(MigrationRefused, match="source does not exist"):
            await logs.migrate(source=source, target=make_journal_target(tmp_path / "new"))
