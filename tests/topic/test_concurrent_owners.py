"""Test concurrent owners of a state partition in a topic of a real Kafka, and restarts of its brokers."""

import asyncio
from pathlib import Path

import pytest

from coordinator.errors import LogError, LogFenced
from coordinator.log.kafka import KafkaLog
from coordinator.process.clock import SystemClock
from tests.kafka.broker import Broker, new_cluster
from tests.kafka.jars import KafkaJars
from tests.kafka.rig import BuiltInRig
from tests.topic.logs import new_topic, topic_log
from tests.unit.log.environments import append, append_durably, read_all
from tests.unit.log.kafka_logs import wait_for_leases

pytestmark = pytest.mark.broker

WRITERS = 4


async def read_values(log: KafkaLog, partitions: int = 1) -> list[bytes | None]:
    found = await read_all(log, range(partitions))
    return [value for records in found.values() for _, _, value in records]


async def test_deposed_owner_can_neither_append_nor_read(built_in: BuiltInRig) -> None:
    bootstrap, topic = built_in.broker.bootstrap, new_topic("owners")
    async with topic_log(bootstrap, topic) as first:
        await append_durably(first, 0, [(b"k", b"first")])
        # A lease renewal is a record too, so it uses an offset.
        assert await append(first, 0, []) == (3, None)
        assert first.lease_left_s(0) > 0
        async with topic_log(bootstrap, topic) as second:
            end = second.end_offset(0)
            assert first.lease_left_s(0) <= 0
            # The broker fences the deposed owner by its producer epoch, so the record is not stored.
            _, error = await append(first, 0, [(b"k", b"zombie")])
            assert isinstance(error, LogFenced)
            assert "error 47" in str(error)
            assert await append_durably(second, 0, [(b"k", b"second")]) == end
            assert await read_values(second) == [b"first", b"second"]


async def test_deposed_owner_that_only_reads_cannot_renew_its_lease(built_in: BuiltInRig) -> None:
    bootstrap, topic = built_in.broker.bootstrap, new_topic("owners")
    async with topic_log(bootstrap, topic) as first, topic_log(bootstrap, topic) as second:
        _, error = await append(first, 0, [])
        assert isinstance(error, LogFenced)
        assert "error 47" in str(error)
        assert first.lease_left_s(0) <= 0
        assert (await append(second, 0, []))[1] is None


async def test_exactly_one_of_several_concurrent_claimants_can_append(built_in: BuiltInRig) -> None:
    bootstrap, topic = built_in.broker.bootstrap, new_topic("owners")
    async with (
        topic_log(bootstrap, topic, own=False) as one,
        topic_log(bootstrap, topic, own=False) as two,
        topic_log(bootstrap, topic, own=False) as three,
        topic_log(bootstrap, topic, read_only=True, own=False) as bystander,
    ):
        logs = (one, two, three)
        for _ in range(10):
            await asyncio.gather(*(log.own(0) for log in logs), return_exceptions=True)
            await asyncio.gather(*(read_values(log) for log in logs), return_exceptions=True)
            await asyncio.gather(*(wait_for_leases(log, 0) for log in logs))
            # A rejected claimant detects the rejection when it reads. A read-only log returns only
            # accepted records.
            before = await read_values(bystander)
            results = await asyncio.gather(*(append(log, 0, [(b"k", b"%d" % id(log))]) for log in logs))
            acknowledged = [
                b"%d" % id(log) for log, (_, error) in zip(logs, results, strict=True) if error is None
            ]
            assert len(acknowledged) == 1
            assert (await read_values(bystander))[len(before) :] == acknowledged


class ConcurrentWriter:
    """Append values to a state partition one after another. Claim the partition again after each failure."""

    def __init__(self, log: KafkaLog, state_partition: int) -> None:
        self.log = log
        self.state_partition = state_partition
        self.acknowledged: list[bytes] = []
        self.attempted = 0
        self.failures: list[LogError] = []

    async def write(self, stop: asyncio.Event) -> None:
        while not stop.is_set():
            value = b"%d:%d" % (self.state_partition, self.attempted)
            self.attempted += 1
            # A starting broker forgets producers whose last record is older than a day by its timestamp. The
            # broker would then accept a repeated batch as a new batch, so use the current time.
            now_ms = SystemClock().now_ms()
            _, error = await append(self.log, self.state_partition, [(b"k", value)], now_ms)
            if error is None:
                self.acknowledged.append(value)
                _, error = await append(self.log, self.state_partition, [])
            if error is not None:
                self.failures.append(error)
                await self._claim_partition()

    async def _claim_partition(self) -> None:
        async with asyncio.timeout(120):
            while True:
                try:
                    await self.log.own(self.state_partition)
                    await read_all(self.log, range(self.state_partition, self.state_partition + 1))
                    await wait_for_leases(self.log, self.state_partition)
                    return
                except LogError as error:
                    self.failures.append(error)

    def check(self, found: list[bytes | None]) -> None:
        """Check that acknowledged values occur once and in order, and that all values were attempted."""
        assert len(found) == len(set(found))
        assert [value for value in found if value in set(self.acknowledged)] == self.acknowledged
        assert set(found) <= {b"%d:%d" % (self.state_partition, n) for n in range(self.attempted)}


async def wait_for_appends(writers: list[ConcurrentWriter], appends: int) -> None:
    """Wait until each writer has `appends` more acknowledged appends."""
    goals = [len(writer.acknowledged) + appends for writer in writers]
    async with asyncio.timeout(120):
        for writer, goal in zip(writers, goals, strict=True):
            while len(writer.acknowledged) < goal:  # noqa: ASYNC110
                await asyncio.sleep(0.01)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_appends_continue_after_a_broker_restart(newest_jars: KafkaJars, tmp_path: Path) -> None:
    broker = Broker(newest_jars, tmp_path)
    broker.start()

    async def main() -> None:
        async with topic_log(broker.bootstrap, new_topic("restart"), WRITERS) as log:
            writers = [ConcurrentWriter(log, number) for number in range(WRITERS)]
            stop = asyncio.Event()
            async with asyncio.TaskGroup() as group:
                for writer in writers:
                    group.create_task(writer.write(stop))
                for end in (broker.kill, broker.stop):
                    await wait_for_appends(writers, 50)
                    await asyncio.to_thread(end)
                    await asyncio.to_thread(broker.start)
                await wait_for_appends(writers, 1)
                stop.set()
            for writer in writers:
                found = await read_all(log, range(writer.state_partition, writer.state_partition + 1))
                writer.check([value for _, _, value in found[writer.state_partition]])

    try:
        asyncio.run(main())
    finally:
        broker.kill()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_appends_follow_new_leaders_when_one_of_three_brokers_dies(
    newest_jars: KafkaJars, tmp_path: Path
) -> None:
    cluster = new_cluster(brokers=3)
    brokers = []
    for member in cluster.members:
        (tmp_path / str(member.node_id)).mkdir()
        brokers.append(
            Broker(newest_jars, tmp_path / str(member.node_id), cluster=cluster, node_id=member.node_id)
        )

    async def main() -> None:
        bootstrap = brokers[0].bootstrap
        async with topic_log(bootstrap, new_topic("three"), WRITERS, replicas=3) as log:
            writers = [ConcurrentWriter(log, number) for number in range(WRITERS)]
            stop = asyncio.Event()
            async with asyncio.TaskGroup() as group:
                for writer in writers:
                    group.create_task(writer.write(stop))
                for broker in brokers[1:]:
                    await wait_for_appends(writers, 50)
                    await asyncio.to_thread(broker.kill)
                    await wait_for_appends(writers, 50)
                    await asyncio.to_thread(broker.start)
                await wait_for_appends(writers, 50)
                stop.set()
            for writer in writers:
                found = await read_all(log, range(writer.state_partition, writer.state_partition + 1))
                writer.check([value for _, _, value in found[writer.state_partition]])
                assert writer.failures == []

    try:
        for broker in brokers:
            broker.process.start()
        for broker in brokers:
            broker.wait_ready()
        asyncio.run(main())
    finally:
        for broker in brokers:
            broker.kill()
