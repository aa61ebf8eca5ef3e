"""User records that a coordinator reports as lost because the start offset skipped them."""

import asyncio
from collections.abc import AsyncIterator, Collection, Mapping

import pytest

from coordinator.errors import LogUnavailable
from coordinator.observe.signals import GroupSignals, SignalMonitor
from coordinator.observe.signals.append_sample import AppendSampler
from coordinator.observe.signals.losses import (
    PAUSE_PER_READ,
    REQUEST_PARTITIONS_MAX,
    LoggedSkips,
    LossCounter,
)
from coordinator.operate.history.worker import SkipsRequest
from coordinator.shard import Shard, ShareState, SnapshotPolicy
from protocol.messages.share_snapshot import ShareSnapshotValue
from protocol.messages.share_update import ShareUpdateValue
from protocol.record_batch import encode_batch
from protocol.routing import state_partition
from protocol.state_records import SharePartitionKey, StateRecord, encode_record
from tests.builders import ACKNOWLEDGED, AVAILABLE, KEY, BatchTuple, pack_batches
from tests.unit.log.kafka_logs import run_simulated

pytestmark = pytest.mark.run_with(function=run_simulated)

READ_S = 1.0
NUMBER = state_partition(KEY, 2)


class SkippingCoordinator:
    """A coordinator with two shards, one of which has state; also the log start of the user topic."""

    def __init__(self) -> None:
        self.shard = Shard(0, SnapshotPolicy())
        self.log: list[bytes] = []
        self.log_start = 0
        self.reads = 0
        self.is_log_readable = True
        self.outdated: Collection[int] = ()
        self.monitor = SignalMonitor(
            self,  # type: ignore[arg-type]
            topics=self,  # type: ignore[arg-type]
            members=None,
            now_ms=lambda: 1_000,
            sample=AppendSampler(),
            read_skips=self._read_skips,
        )
        self.append_record(ShareSnapshotValue(0, 1, 2, 0, 5, 5, b"", 0))

    # The methods of `StateView`, of the log and of the cluster that the monitor calls.

    state_partitions = 2

    def owned_shards(self) -> list[int]:
        return [0, 1]

    def outdated_partitions(self) -> Collection[int]:
        return self.outdated

    async def share_partitions(self) -> AsyncIterator[tuple[SharePartitionKey, ShareState]]:
        for entry in self.shard.items():
            yield entry

    async def batches(self, state_partition: int) -> AsyncIterator[bytes]:
        for batch in self.log:
            yield batch

    async def end_offsets(self, partitions: Collection[tuple[bytes, int]]) -> Mapping[tuple[bytes, int], int]:
        return dict.fromkeys(partitions, 1_000)

    async def start_offsets(
        self, partitions: Collection[tuple[bytes, int]]
    ) -> Mapping[tuple[bytes, int], int]:
        return dict.fromkeys(partitions, self.log_start)

    async def offsets_at_times(
        self, times_ms: Mapping[tuple[bytes, int], int]
    ) -> Mapping[tuple[bytes, int], int]:
        return {}

    async def _read_skips(
        self, number: int, from_offsets: Mapping[SharePartitionKey, int]
    ) -> Mapping[SharePartitionKey, LoggedSkips]:
        assert number == NUMBER
        self.reads += 1
        await asyncio.sleep(READ_S)
        if not self.is_log_readable:
            raise LogUnavailable("no disk")
        return await SkipsRequest(self, number, from_offsets).read()

    # Changes of the state and of the log.

    def append_record(self, value: ShareUpdateValue | ShareSnapshotValue, *, is_logged: bool = True) -> None:
        record = StateRecord(KEY, value)
        self.shard.replay(record, len(self.log), 1)
        if is_logged:
            self.write_to_log(value)

    def write_to_log(self, value: ShareUpdateValue | ShareSnapshotValue) -> None:
        self.log.append(encode_batch(len(self.log), 1, [encode_record(StateRecord(KEY, value))]))

    def append_update(self, *batches: BatchTuple, start_offset: int) -> None:
        self.append_record(ShareUpdateValue(0, 2, start_offset, pack_batches(*batches), 0))

    async def count_lost(self) -> int:
        """Compute signals until the monitor has read the log; return the number of lost records."""
        for _ in range(3):
            await self.monitor.compute_signals()
            await asyncio.sleep(READ_S + 0.1)
        return self.monitor.groups[KEY.group_id].lost_records


@pytest.fixture
def coordinator() -> SkippingCoordinator:
    return SkippingCoordinator()


@pytest.mark.parametrize(
    ("log_start", "acknowledged", "lost", "reads"),
    [
        pytest.param(8, 0, 4, 1, id="retention"),
        pytest.param(0, 0, 0, 0, id="no retention"),
        pytest.param(2, 0, 0, 1, id="retention of completed records"),
        pytest.param(8, 4, 0, 1, id="completed before retention"),
    ],
)
async def test_skipped_records_are_lost_only_if_retention_deleted_them(
    coordinator: SkippingCoordinator, log_start: int, acknowledged: int, lost: int, reads: int
) -> None:
    # Offsets 0 to 3 are complete, 4 to 7 are not.
    coordinator.append_update((0, 3, ACKNOWLEDGED, 1), start_offset=0)
    await coordinator.monitor.compute_signals()
    if acknowledged:
        coordinator.append_update((4, 3 + acknowledged, ACKNOWLEDGED, 1), start_offset=0)
    coordinator.log_start = log_start
    coordinator.append_update(start_offset=8)
    assert await coordinator.count_lost() == lost
    assert coordinator.reads == reads


async def test_offset_reset_is_not_reported_as_lost_records(coordinator: SkippingCoordinator) -> None:
    coordinator.append_update((0, 3, ACKNOWLEDGED, 1), start_offset=0)
    await coordinator.monitor.compute_signals()
    coordinator.log_start = 8
    coordinator.append_record(ShareSnapshotValue(1, 2, 0, 8, 5, 5, b"", 0))
    assert await coordinator.count_lost() == 0


async def test_first_write_after_a_load_can_skip_records(coordinator: SkippingCoordinator) -> None:
    coordinator.monitor.on_shard_loaded(coordinator.shard)
    coordinator.log_start = 8
    coordinator.append_update(start_offset=8)
    assert await coordinator.count_lost() == 8


async def test_skip_in_the_append_in_flight_is_counted_once(coordinator: SkippingCoordinator) -> None:
    await coordinator.monitor.compute_signals()
    coordinator.log_start = 9
    coordinator.append_update(start_offset=3)
    last = ShareUpdateValue(0, 2, 9, b"", 0)
    coordinator.append_record(last, is_logged=False)
    assert await coordinator.count_lost() == 3
    coordinator.write_to_log(last)
    await asyncio.sleep(PAUSE_PER_READ * READ_S)
    assert await coordinator.count_lost() == 9
    await asyncio.sleep(PAUSE_PER_READ * READ_S)
    assert await coordinator.count_lost() == 9
    assert coordinator.reads == 2


async def test_skip_is_counted_once_while_another_shard_is_loaded(coordinator: SkippingCoordinator) -> None:
    await coordinator.monitor.compute_signals()
    coordinator.outdated = [1 - NUMBER]
    coordinator.log_start = 1_000
    # Nothing waits in the share-partition any more.
    coordinator.append_update(start_offset=1_000)
    for _ in range(2):
        assert await coordinator.count_lost() == 1_000
        await asyncio.sleep(PAUSE_PER_READ * READ_S)
    assert coordinator.reads == 1


async def test_log_is_read_at_most_a_tenth_of_the_time(coordinator: SkippingCoordinator) -> None:
    await coordinator.monitor.compute_signals()
    for offset in range(1, 101):
        # Retention deletes each record before its delivery.
        coordinator.log_start = offset
        coordinator.append_update((offset, offset, AVAILABLE, 1), start_offset=offset)
        await coordinator.monitor.compute_signals()
        await asyncio.sleep(READ_S)
    assert coordinator.reads <= 11
    await asyncio.sleep(PAUSE_PER_READ * READ_S)
    assert await coordinator.count_lost() == 100


async def test_unreadable_log_is_reported(
    coordinator: SkippingCoordinator, caplog: pytest.LogCaptureFixture
) -> None:
    await coordinator.monitor.compute_signals()
    coordinator.log_start, coordinator.is_log_readable = 8, False
    coordinator.append_update(start_offset=8)
    assert await coordinator.count_lost() == 0
    assert f"State partition {NUMBER} cannot be read, so lost records are not counted: no disk" in caplog.text


async def test_log_start_offsets_of_many_share_partitions_are_requested_in_parts() -> None:
    class CountingTopics:
        requested_max = 0

        async def start_offsets(
            self, partitions: Collection[tuple[bytes, int]]
        ) -> Mapping[tuple[bytes, int], int]:
            self.requested_max = max(self.requested_max, len(partitions))
            return dict.fromkeys(partitions, 5)

    topics = CountingTopics()
    losses = LossCounter(topics, lambda: 0)  # type: ignore[arg-type]
    for number in range(2 * REQUEST_PARTITIONS_MAX + 1):
        losses.record_skip(KEY._replace(partition=number), 1, 5)
    await losses.count_losses(1)
    signals = GroupSignals(group=KEY.group_id)
    losses.add_losses_to(signals)
    assert signals.lost_records == 2 * REQUEST_PARTITIONS_MAX + 1
    assert topics.requested_max <= REQUEST_PARTITIONS_MAX
