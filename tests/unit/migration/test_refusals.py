"""Migrations that are refused to protect state, and the options that allow them."""

from pathlib import Path
from typing import Any

import pytest

from coordinator.errors import LogFenced, LogLocked
from coordinator.operate.migration.fold import MigrationRefused
from coordinator.operate.migration.log_target import LogTarget
from coordinator.operate.migration.migrate import MigrationOptions, migrate_states
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
from tests.unit.log.environments import append, append_durably, read_all
from tests.unit.log.kafka_logs import run_in_real_time, run_simulated
from tests.unit.migration.locations import (
    EXECUTE,
    SOURCE,
    SOURCE_PARTITIONS,
    TARGET,
    TARGET_PARTITIONS,
    MigrationLogs,
    ignore_progress,
    journal_target,
    make_journal,
    make_key,
    make_snapshot,
    sample_records,
)


@pytest.mark.run_with(function=run_simulated)
async def test_different_target_state_is_refused_unless_replace_is_given() -> None:
    places = MigrationLogs(sample_records())
    places.make_topic(TARGET, TARGET_PARTITIONS)
    disconnected = make_key(90, "gone")
    # The target has greater epochs than the source; the replacement must lower them.
    newer = make_snapshot(4, snapshot_epoch=40, leader_epoch=40)
    places.write(TARGET, [StateRecord(make_key(4), newer), StateRecord(disconnected, make_snapshot(90))])
    for options in (MigrationOptions(), EXECUTE):
        with pytest.raises(
            MigrationRefused, match=rf"2 share-partitions \({make_key(4)}, {disconnected}\).*--replace"
        ):
            await places.migrate(options)
    assert places.produce_requests() == 0
    report = await places.migrate(MigrationOptions(execute=True, replace=True))
    assert report.is_good
    counts = report.plan.counts()
    assert (
        counts[MigrationAction.REPLACE],
        counts[MigrationAction.DELETE],
        counts[MigrationAction.COPY],
    ) == (1, 1, 18)
    assert await places.comparable_states(TARGET) == await places.comparable_states(SOURCE)


@pytest.mark.run_with(function=run_simulated)
async def test_owned_target_is_refused_until_it_is_released() -> None:
    places = MigrationLogs(sample_records())
    owner = places.log(TARGET, TARGET_PARTITIONS, "kafka-7:9095")
    await owner.open()
    for partition in range(TARGET_PARTITIONS):
        await owner.own(partition)
    await read_all(owner, range(TARGET_PARTITIONS))
    with pytest.raises(MigrationRefused, match=r"3 state partitions .* have an owner, such as kafka-7:9095"):
        await places.migrate()
    for partition in range(TARGET_PARTITIONS):
        await owner.release(partition)
    assert (await places.migrate()).is_good


@pytest.mark.run_with(function=run_simulated)
async def test_owner_that_died_is_fenced_by_take_over() -> None:
    places = MigrationLogs(sample_records())
    zombie = places.log(TARGET, TARGET_PARTITIONS, "kafka-7:9095")
    await zombie.open()
    await zombie.own(1)
    await read_all(zombie, range(TARGET_PARTITIONS))
    await append_durably(zombie, 1, [(b"\x7f\x00", None)])
    report = await places.migrate(MigrationOptions(execute=True, take_over=True))
    assert report.is_good
    _, error = await append(zombie, 1, [encode_record(StateRecord(make_key(1), None))])
    assert isinstance(error, LogFenced)
    assert await places.comparable_states(TARGET) == await places.comparable_states(SOURCE)


@pytest.mark.run_with(function=run_in_real_time)
async def test_journal_of_a_running_coordinator_is_refused_as_source_and_target(tmp_path: Path) -> None:
    places, folder = MigrationLogs(sample_records()), tmp_path / "data"
    assert (await migrate_states(places.reader(), journal_target(folder), EXECUTE, ignore_progress)).is_good
    places.write(SOURCE, [StateRecord(make_key(50), make_snapshot(50))])
    coordinator = make_journal(folder)
    await coordinator.open()
    said = set()
    for options in (EXECUTE, MigrationOptions()):
        with pytest.raises(LogLocked) as caught:
            await migrate_states(places.reader(), journal_target(folder), options, ignore_progress)
        said.add(str(caught.value))
        with pytest.raises(LogLocked) as caught:
            await migrate_states(JournalReader(folder), places.target(), options, ignore_progress)
        said.add(str(caught.value))
    assert len(said) == 1
    assert places.produce_requests() == 0
    await coordinator.close()
    assert (await migrate_states(places.reader(), journal_target(folder), EXECUTE, ignore_progress)).is_good


@pytest.mark.run_with(function=run_in_real_time)
async def test_dry_run_neither_creates_nor_keeps_a_lock(tmp_path: Path) -> None:
    places, folder = MigrationLogs(sample_records()), tmp_path / "data"
    assert (await migrate_states(places.reader(), journal_target(folder), EXECUTE, ignore_progress)).is_good
    places.write(SOURCE, [StateRecord(make_key(50), make_snapshot(50))])
    for _ in range(2):
        before = {file.name: file.stat().st_mtime_ns for file in folder.iterdir()}
        await migrate_states(places.reader(), journal_target(folder), MigrationOptions(), ignore_progress)
        await migrate_states(
            JournalReader(folder), journal_target(tmp_path / "new"), MigrationOptions(), ignore_progress
        )
        assert {file.name: file.stat().st_mtime_ns for file in folder.iterdir()} == before
        # A copy of a journal has no lock file.
        (folder / "lock").unlink(missing_ok=True)
    assert not (tmp_path / "new").exists()
    assert (await migrate_states(places.reader(), journal_target(folder), EXECUTE, ignore_progress)).is_good


class ChangingTarget(LogTarget):
    """A target that writes to the source during its lookup with the given number."""

    def __init__(self, places: MigrationLogs, records: list[StateRecord], number: int) -> None:
        vars(self).update(vars(places.target()))
        self._meddled = places
        self._meddling = records
        self._looks_left = number

    async def lookup(self, wanted: Any, progress: Any) -> LookupResult:
        self._looks_left -= 1
        if self._looks_left == 0:
            self._meddled.write(SOURCE, self._meddling)
        return await super().lookup(wanted, progress)


@pytest.mark.parametrize(("number", "written"), [(1, False), (2, True)])
@pytest.mark.run_with(function=run_simulated)
async def test_changing_source_is_refused(number: int, written: bool) -> None:
    places = MigrationLogs(sample_records())
    target = ChangingTarget(places, [StateRecord(make_key(6), make_snapshot(6, start_offset=601))], number)
    with pytest.raises(MigrationRefused, match=rf"1 share-partitions \({make_key(6)}\).*still active on it"):
        await migrate_states(places.reader(), target, EXECUTE, ignore_progress)
    assert (TARGET in places.kafka.topics) == written


class MissingTopicTarget(LogTarget):
    """A target whose cluster no longer has the topic of key(4), although the target has state of it."""

    def __init__(self, places: MigrationLogs) -> None:
        vars(self).update(vars(places.target()))

    async def lookup(self, wanted: Any, progress: Any) -> LookupResult:
        looked = await super().lookup(wanted, progress)
        return looked._replace(unknown_topics=frozenset({make_key(4)} & set(wanted)))

    async def apply_plan(self, states: Any, plan_for: Any, progress: Any) -> list[MigrationDifference]:
        def make_plan(looked: LookupResult) -> MigrationPlan:
            return plan_for(looked._replace(unknown_topics=frozenset({make_key(4)})))  # type: ignore[no-any-return]

        return await super().apply_plan(states, make_plan, progress)


@pytest.mark.run_with(function=run_simulated)
async def test_omitted_share_partition_is_not_a_difference() -> None:
    places = MigrationLogs(sample_records())
    places.make_topic(TARGET, TARGET_PARTITIONS)
    places.write(TARGET, [StateRecord(make_key(4), make_snapshot(4, start_offset=7))])
    options = MigrationOptions(execute=True, leave_out_unknown_topics=True)
    report = await migrate_states(places.reader(), MissingTopicTarget(places), options, ignore_progress)
    assert report.plan.keys(MigrationAction.OMIT) == [make_key(4)]
    assert report.different == []


@pytest.mark.run_with(function=run_simulated)
async def test_cold_snapshot_is_not_a_change_of_the_source() -> None:
    places = MigrationLogs(sample_records())
    again = next_snapshot((await places.read_folded_log(SOURCE)).states[make_key(6)], now_ms=9)
    target = ChangingTarget(places, [StateRecord(make_key(6), again)], 1)
    assert (await migrate_states(places.reader(), target, EXECUTE, ignore_progress)).is_good


@pytest.mark.run_with(function=run_simulated)
async def test_unreadable_state_is_refused() -> None:
    places = MigrationLogs(sample_records())
    key_bytes, _ = encode_record(StateRecord(make_key(7), make_snapshot(7)))
    partition = places.kafka.topics[SOURCE][state_partition(make_key(7), SOURCE_PARTITIONS)]
    partition.append(encode_batch(0, 1, [(key_bytes, b"\0\x09new")]))
    with pytest.raises(MigrationRefused, match="a newer release wrote the state of 1 share-partitions"):
        await places.migrate()


@pytest.mark.run_with(function=run_in_real_time)
async def test_missing_source_is_refused(tmp_path: Path) -> None:
    for source in (
        MigrationLogs().reader("nothing"),
        JournalReader(tmp_path / "missing"),
        JournalReader(tmp_path),
    ):
        with pytest.raises(MigrationRefused, match="source does not exist"):
            await migrate_states(source, journal_target(tmp_path / "new"), EXECUTE, ignore_progress)
