"""Migrations into a coordinator through its RPCs: the real coordinator, over TCP."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from coordinator.client import ONCE, ShareCoordinatorClient
from coordinator.operate.migration.coordinator_target import CoordinatorTarget
from coordinator.operate.migration.fold import ComparableState, MigrationRefused
from coordinator.operate.migration.migrate import MigrationOptions, MigrationReport, migrate_states
from coordinator.operate.migration.plan import MigrationAction
from protocol.state_batches import StateBatch, pack
from protocol.state_records import StateRecord
from tests.kafka.ports import free_ports
from tests.unit.client.our_coordinator import serve_real_coordinator
from tests.unit.log.kafka_logs import run_in_real_time
from tests.unit.migration.locations import (
    EXECUTE,
    SOURCE,
    MigrationLogs,
    ignore_progress,
    make_key,
    make_sample_records,
    make_snapshot,
)

pytestmark = pytest.mark.run_with(function=run_in_real_time)


class CoordinatorMigration:
    """A source topic, and a coordinator as the target."""

    def __init__(self, logs: MigrationLogs, address: str) -> None:
        self.logs = logs
        self.address = address
        self.client = ShareCoordinatorClient(address, retry=ONCE)

    async def migrate(self, options: MigrationOptions = EXECUTE) -> MigrationReport:
        target = CoordinatorTarget(self.address, self.logs.reader(SOURCE), retry=ONCE)
        return await migrate_states(self.logs.reader(), target, options, ignore_progress)


@asynccontextmanager
async def prepare_migration(records: list[StateRecord]) -> AsyncIterator[CoordinatorMigration]:
    async with serve_real_coordinator() as address:
        migration = CoordinatorMigration(MigrationLogs(records), address)
        async with migration.client:
            yield migration


async def test_coordinator_returns_the_state_of_the_source() -> None:
    async with prepare_migration(make_sample_records()) as migration:
        report = await migration.migrate()
        assert report.is_successful
        assert report.plan.count_actions()[MigrationAction.COPY] == 19
        states = report.folded.states
        assert len(states) == 19
        for share_partition, state in states.items():
            summary = await migration.client.summary(share_partition)
            # For a reinitialized state, the RPCs return the greatest leader epoch. Lower ones are fenced.
            expected = (
                state.state_epoch,
                state.leader_epoch_max,
                state.start_offset,
                state.delivery_complete_count,
            )
            assert summary == expected
            read = await migration.client.read(share_partition, state.leader_epoch_max)
            assert pack(read.batches) == state.batches
        assert report.notes == [
            "1 share-partitions were initialised again after a leader had read them: the target shows their "
            "highest leader epoch, the source shows 0"
        ]


async def test_states_with_boundary_values_are_migrated() -> None:
    edges = [
        # Initialized with state epoch 0: ReadShareGroupStateSummary returns the values of a missing state.
        StateRecord(
            make_key(0),
            make_snapshot(
                0,
                state_epoch=0,
                leader_epoch=0,
                start_offset=-1,
                delivery_complete_count=-1,
                state_batches=b"",
            ),
        ),
        # Written by a broker that does not maintain the delivery complete count.
        StateRecord(make_key(1), make_snapshot(1, delivery_complete_count=-1)),
        StateRecord(
            make_key(2), make_snapshot(2, leader_epoch=0, state_batches=b"", delivery_complete_count=0)
        ),
        StateRecord(make_key(3), make_snapshot(3, state_batches=b"", delivery_complete_count=0)),
    ]
    async with prepare_migration(edges) as migration:
        report = await migration.migrate()
        assert (report.is_successful, report.notes) == (True, [])
        assert (await migration.client.summary(make_key(0)))[2:] == (-1, -1)
        assert (await migration.client.read(make_key(0), 0)).state_epoch == 0
        assert (await migration.client.summary(make_key(1))).delivery_complete_count == -1
        again = await migration.migrate()
        assert again.plan.count_actions()[MigrationAction.ALREADY_PRESENT] == 4


async def test_dry_run_changes_no_state_of_the_coordinator() -> None:
    async with prepare_migration(make_sample_records()) as migration:
        await migration.migrate(MigrationOptions())
        assert (await migration.client.summary(make_key(4))).state_epoch == 0
        await migration.client.initialize(make_key(4), 3, 401)
        with pytest.raises(MigrationRefused, match=rf"1 share-partitions \({make_key(4)}\).*--replace"):
            await migration.migrate()
        # The refused migration sent no ReadShareGroupState, so a leader with leader epoch 0 is not fenced.
        assert (await migration.client.read(make_key(4), 0)).batches == []


async def test_different_state_is_replaced_on_request_including_leader_epochs() -> None:
    async with prepare_migration(make_sample_records()) as migration:
        await migration.client.initialize(make_key(4), 9, 7)
        await migration.client.read(make_key(4), 40)
        await migration.client.write(
            make_key(4), state_epoch=9, leader_epoch=40, start_offset=7, batches=[StateBatch(7, 900, 2, 9)]
        )
        with pytest.raises(MigrationRefused, match="--replace"):
            await migration.migrate()
        report = await migration.migrate(MigrationOptions(execute=True, replace=True))
        assert report.is_successful
        assert await migration.client.summary(make_key(4)) == (3, 4, 400, 5)
        assert (await migration.client.read(make_key(4), 4)).batches == [
            StateBatch(400, 404, 2, 1),
            StateBatch(406, 407, 0, 2),
        ]


async def test_hidden_higher_leader_epoch_is_a_different_state() -> None:
    async with prepare_migration(
        [
            StateRecord(
                make_key(4), make_snapshot(4, leader_epoch=0, state_batches=b"", delivery_complete_count=0)
            )
        ]
    ) as migration:
        await migration.client.initialize(make_key(4), 2, 400)
        await migration.client.read(make_key(4), 8)
        # The Summary shows the leader epoch 0 again, but leader epochs below 8 stay fenced.
        await migration.client.initialize(make_key(4), 3, 400)
        assert await migration.client.summary(make_key(4)) == (3, 0, 400, 0)
        with pytest.raises(MigrationRefused, match="--replace"):
            await migration.migrate()


async def test_interrupted_migration_is_continued() -> None:
    unknown_count = StateRecord(make_key(30), make_snapshot(30, delivery_complete_count=-1))
    async with prepare_migration([*make_sample_records(), unknown_count]) as migration:
        # The migration was interrupted after Initialize (key 4), after Read (key 5), and after an Initialize
        # without a start offset (key 30).
        await migration.client.initialize(make_key(4), 3, 400)
        await migration.client.initialize(make_key(5), 3, 500)
        await migration.client.read(make_key(5), 4)
        await migration.client.initialize(make_key(30), 3, -1)
        report = await migration.migrate()
        assert (report.plan.count_actions()[MigrationAction.COPY], report.is_successful) == (20, True)
        assert (await migration.migrate()).plan.is_done


async def test_share_partitions_changed_during_the_migration_are_reported() -> None:
    class ChangingTarget(CoordinatorTarget):
        """A target whose states of two share-partitions change before the third lookup."""

        lookups = 0

        async def lookup(self, wanted, progress):  # type: ignore[no-untyped-def]
            self.lookups += 1
            if self.lookups == 3:
                await migration.client.delete(make_key(5))
                await migration.client.initialize(make_key(6), 8, 1)
            return await super().lookup(wanted, progress)

    async with prepare_migration(make_sample_records()) as migration:
        target = ChangingTarget(migration.address, migration.logs.reader(SOURCE), retry=ONCE)
        report = await migrate_states(migration.logs.reader(), target, EXECUTE, ignore_progress)
        assert {different.key: different.what for different in report.different} == {
            make_key(5): "the target has no state of it",
            make_key(6): "state epoch 8, not 3; leader epoch 0, not 4; leader epoch max 0, not 4; "
            "start offset 1, not 600; delivery complete count 0, not 5",
        }


async def test_unreachable_target_is_refused() -> None:
    (port,) = free_ports(1)
    target = CoordinatorTarget(f"127.0.0.1:{port}", MigrationLogs().reader(SOURCE), retry=ONCE)
    with pytest.raises(MigrationRefused, match=r"the target cannot be reached: .*Connection refused"):
        await migrate_states(
            MigrationLogs(make_sample_records()).reader(), target, MigrationOptions(), ignore_progress
        )


async def test_target_without_delivery_complete_count_is_noted() -> None:
    target = CoordinatorTarget("nowhere:1", MigrationLogs().reader(SOURCE))
    target._server = target._server._replace(stores_complete_count=False)

    states = (await MigrationLogs(make_sample_records(2)).read_folded_log(SOURCE)).states
    assert "the counts of 3 share-partitions are not copied" in target.describe_losses(states)[0]
    assert target.storable_state(states[make_key(0)]) == ComparableState.from_state(
        states[make_key(0)]
    )._replace(delivery_complete_count=-1)
