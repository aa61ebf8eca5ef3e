"""State from a log to a log: what is copied, what is refused, and what is noticed."""

import asyncio
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from coordinator.errors import LogError
from coordinator.log.base import AppendCallback, StateLog, Unit
from coordinator.migration.factory import JournalSource
from coordinator.migration.fold import ComparableState
from coordinator.migration.log_target import LogTarget
from coordinator.migration.migrate import Options, migrate
from coordinator.migration.plan import Action
from coordinator.migration.readers import JournalReader
from protocol.record_batch import encode_batch
from protocol.state_records import SharePartitionKey, StateRecord, encode_record
from tests.builders import TOPIC_ID
from tests.unit.log.environments import SimulatedEnvironment, read_all
from tests.unit.migration.locations import (
    EXECUTE,
    SOURCE,
    SOURCE_PARTITIONS,
    TARGET,
    TARGET_PARTITIONS,
    MigrationLogs,
    journal_target,
    key,
    no_progress,
    snapshot,
    some_state,
)


def run(main: Coroutine[Any, Any, None]) -> None:
    SimulatedEnvironment().run(main)


# What is copied.


def test_the_target_holds_the_state_of_the_source_in_its_own_number_of_state_partitions() -> None:
    async def main() -> None:
        places = MigrationLogs(some_state())
        report = await places.migrate()
        assert (report.is_good, report.executed) == (True, True)
        assert report.plan.counts()[Action.COPY] == 19
        held = await places.held(TARGET)
        assert held == await places.held(SOURCE)
        assert len(held) == 19
        assert key(3) not in held
        assert len(places.kafka.topics[TARGET]) == TARGET_PARTITIONS
        # An update, and a state that began anew, whose memory of leaders is longer than itself.
        assert held[key(1)][:5] == (3, 6, 6, 101, 7)
        assert held[key(2)][:3] == (4, 0, 4)

    run(main())


def test_a_snapshot_counts_on_and_keeps_its_time_of_creation() -> None:
    async def main() -> None:
        places = MigrationLogs(some_state())
        await places.migrate()
        state = (await places.folded(TARGET)).states[key(4)]
        assert (state.snapshot_epoch, state.create_timestamp) == (7, 1_000)
        assert state.write_timestamp > 2_000

    run(main())


def test_the_claims_of_a_migration_end_with_it() -> None:
    async def main() -> None:
        places = MigrationLogs(some_state())
        await places.migrate()
        assert (await places.folded(TARGET)).owners == {}

    run(main())


def test_records_that_do_not_count_are_not_copied() -> None:
    async def main() -> None:
        places = MigrationLogs()
        places.make_topic("before", SOURCE_PARTITIONS)
        first, second = (
            places.log("before", SOURCE_PARTITIONS, "first"),
            places.log("before", SOURCE_PARTITIONS, "second"),
        )
        for log in (first, second):
            await log.open()
            for partition in range(SOURCE_PARTITIONS):
                await log.own(partition)
            await read_all(log, range(SOURCE_PARTITIONS))
        # As a deposed owner whom the brokers do not stop.
        places.write("before", some_state())
        report = await migrate(places.source("before"), places.target(), EXECUTE, no_progress)
        assert report.folded.states == {}
        assert "5 state partitions of the source are owned, number 0 by second" in report.notes[0]

    run(main())


def test_a_journal_takes_it_and_gives_it_back(tmp_path: Path) -> None:
    async def main() -> None:
        places, folder = MigrationLogs(some_state()), tmp_path / "data"
        assert (await migrate(places.source(), journal_target(folder), EXECUTE, no_progress)).is_good
        report = await migrate(JournalSource(folder), places.target(), EXECUTE, no_progress)
        assert report.is_good
        assert await places.held(TARGET) == await places.held(SOURCE)
        other = tmp_path / "other"
        assert (await migrate(JournalSource(folder), journal_target(other), EXECUTE, no_progress)).is_good

    asyncio.run(main())


def test_many_states_need_many_appends() -> None:
    async def main() -> None:
        places = MigrationLogs(some_state(3_000))
        shown: list[tuple[str, int, int]] = []
        report = await migrate(
            places.source(), places.target(), EXECUTE, lambda *progress: shown.append(progress)
        )
        assert report.is_good
        written = [done for what, done, total in shown if what == "writing" and total == 2_999]
        assert written == sorted(written)
        assert len(written) >= TARGET_PARTITIONS
        assert written[-1] == 2_999

    run(main())


# What writes nothing.


def test_without_execute_nothing_is_written(tmp_path: Path) -> None:
    async def main() -> None:
        places, folder = MigrationLogs(some_state()), tmp_path / "data"
        report = await places.migrate(Options())
        assert (report.executed, report.plan.counts()[Action.COPY]) == (False, 19)
        assert TARGET not in places.kafka.topics
        places.make_topic(TARGET, TARGET_PARTITIONS)
        await places.migrate(Options())
        assert places.produced() == 0
        await migrate(places.source(), journal_target(folder), Options(), no_progress)
        assert not folder.exists()

    asyncio.run(main())


def test_what_is_there_already_is_left_alone() -> None:
    async def main() -> None:
        places = MigrationLogs(some_state())
        await places.migrate()
        produced = places.produced()
        report = await places.migrate()
        assert report.is_good
        assert report.plan.counts()[Action.ALREADY_PRESENT] == 19
        assert places.produced() == produced

    run(main())


# Interruptions.


class FailingLog:
    """A log that breaks after a number of appends, or changes what is appended."""

    def __init__(
        self, log: StateLog, appends: int = 1 << 30, tampered: SharePartitionKey | None = None
    ) -> None:
        self._log = log
        self._appends_left = appends
        self._tampered = tampered

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)

    def append(
        self,
        state_partition: int,
        records: Sequence[tuple[bytes, bytes | None]],
        timestamp_ms: int,
        done: AppendCallback,
        units: Sequence[Unit] = (),
    ) -> None:
        self._appends_left -= 1
        if self._appends_left < 0:
            asyncio.get_running_loop().call_soon(done, 0, LogError("the power went"))
            return
        if self._tampered is not None:
            other = encode_record(StateRecord(self._tampered, snapshot(5, start_offset=499)))
            records = [other if other[0] == record[0] else record for record in records]
        self._log.append(state_partition, records, timestamp_ms, done)


def target_through(places: MigrationLogs, **how: Any) -> LogTarget:
    """Return a target whose log misbehaves."""
    target = places.target()
    make_log = target._make_log
    target._make_log = lambda partitions: FailingLog(make_log(partitions), **how)  # type: ignore[assignment,return-value]
    return target


def test_an_interrupted_migration_goes_on_where_it_was() -> None:
    async def main() -> None:
        places = MigrationLogs(some_state())
        with pytest.raises(LogError, match="the power went"):
            await migrate(places.source(), target_through(places, appends=1), EXECUTE, no_progress)
        there = len(await places.held(TARGET))
        assert 0 < there < 19
        report = await places.migrate()
        assert report.is_good
        counts = report.plan.counts()
        assert (counts[Action.ALREADY_PRESENT], counts[Action.COPY]) == (there, 19 - there)
        assert await places.held(TARGET) == await places.held(SOURCE)

    run(main())


def test_a_target_that_does_not_hold_what_was_written_is_noticed() -> None:
    async def main() -> None:
        places = MigrationLogs(some_state())
        report = await migrate(places.source(), target_through(places, tampered=key(5)), EXECUTE, no_progress)
        assert not report.is_good
        assert [different.key for different in report.different] == [key(5)]
        assert report.different[0].what == "start offset 499, not 500"

    run(main())


# What is said.


def test_what_holds_no_state_is_counted_and_what_nobody_looks_for_is_named() -> None:
    async def main() -> None:
        places = MigrationLogs(some_state())
        partitions = places.kafka.topics[SOURCE]
        partitions[0].append(encode_batch(0, 1, [(b"\x00\x09future", b"")]))
        stray = encode_record(StateRecord(SharePartitionKey("stray", TOPIC_ID, 1), snapshot(1)))
        for partition in partitions:
            partition.append(encode_batch(0, 1, [stray]))
        report = await places.migrate()
        assert report.is_good
        assert report.notes[0] == "1 records of the source are of a type that holds no state"
        assert report.notes[1].startswith(
            "left behind, because they are where no coordinator looks for them: 4 "
        )

    run(main())


def test_a_journal_is_read_without_being_touched(tmp_path: Path) -> None:
    async def main() -> None:
        places, folder = MigrationLogs(some_state()), tmp_path / "data"
        await migrate(places.source(), journal_target(folder), EXECUTE, no_progress)
        before = {path.name: path.read_bytes() for path in folder.iterdir()}
        reader = JournalReader(folder)
        folded = await reader.fold(no_progress)
        assert folded is not None
        assert folded.held() == await places.held(SOURCE)
        assert await reader.ends() == folded.ends
        assert {path.name: path.read_bytes() for path in folder.iterdir()} == before

    asyncio.run(main())


def test_a_state_that_cannot_be_read_is_equal_to_none_that_can() -> None:
    async def main() -> None:
        state = (await MigrationLogs(some_state()).folded(SOURCE)).states[key(4)]
        assert ComparableState.from_state(state) != ComparableState.from_state(
            msgspec.structs.replace(state, unreadable="new")
        )

    run(main())
