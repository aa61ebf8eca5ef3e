"""Logs of several processes in one topic of a Kafka cluster in memory."""

import asyncio
from collections.abc import Coroutine
from typing import Any

from coordinator.cluster.kafka.brokers import Brokers
from coordinator.log.claims import owner_epoch_headers
from coordinator.log.kafka import KafkaLog, KafkaLogLimits, TopicConfig
from coordinator.process.clock import SystemClock
from protocol.record_batch import encode_batch
from tests.kafka_in_memory.kafka import KafkaInMemory, RealTimeLoop, close_clients
from tests.unit.log.environments import STATE_PARTITIONS, SimulatedEnvironment, read_all

TOPIC = "state"
ONE = [(b"key", b"value")]


class KafkaLogs:
    """A Kafka cluster in memory, and the logs of several processes in one of its topics."""

    def __init__(self) -> None:
        self.kafka = KafkaInMemory()
        self.pruning_failed: list[str] = []

    def log(self) -> KafkaLog:
        """Return the log of a new process. The log is not open."""
        return self.make_log_and_cluster()[0]

    def make_log_and_cluster(self, *, append_timeout_s: float = 5) -> tuple[KafkaLog, Brokers]:
        cluster = self.kafka.new_client(TOPIC)
        log = KafkaLog(
            cluster,
            TopicConfig(TOPIC, STATE_PARTITIONS),
            owner="test",
            clock=SystemClock(),
            limits=KafkaLogLimits(request_timeout_s=1, append_timeout_s=append_timeout_s, start_timeout_s=5),
            prune_failed=self.pruning_failed.append,
            monotonic=loop_time,
        )
        return log, cluster

    async def open_owned_log(self, *state_partitions: int) -> KafkaLog:
        """Open the log of a new process, and claim the state partitions. Wait for earlier leases to end."""
        log = self.log()
        await log.open()
        for state_partition in state_partitions:
            await log.acquire_ownership(state_partition)
        await read_all(log)
        await wait_for_leases(log, *state_partitions)
        return log

    def partition(self, number: int) -> Any:
        return self.kafka.topics[TOPIC][number]

    def append_without_producer_id(
        self, number: int, records: list[tuple[bytes, bytes | None]], owner_epoch: int | None
    ) -> None:
        """Append a batch without a producer id, so that the brokers do not fence the writer."""
        headers = () if owner_epoch is None else owner_epoch_headers(owner_epoch)
        self.partition(number).append(encode_batch(0, 1, records, headers))


def loop_time() -> float:
    """Return the time of the running loop, which may be virtual, as a monotonic clock."""
    return asyncio.get_running_loop().time()


async def wait_for_leases(log: KafkaLog, *state_partitions: int) -> None:
    """Wait until the leases of earlier owners have ended, so that no earlier owner can answer reads."""
    await asyncio.sleep(
        max((log.earlier_leases_left_s(partition) for partition in state_partitions), default=0.0)
    )


def run_in_real_time(main: Coroutine[Any, Any, Any]) -> None:
    """Run a coroutine with real disks and sockets, and with Kafka clusters in memory."""
    with asyncio.Runner(loop_factory=RealTimeLoop) as runner:
        runner.run(close_clients_after(main))


def run_simulated(main: Coroutine[Any, Any, None]) -> None:
    SimulatedEnvironment().run(close_clients_after(main))


async def close_clients_after(main: Coroutine[Any, Any, Any]) -> None:
    """Run a coroutine, and close the connections to Kafka clusters in memory."""
    try:
        await main
    finally:
        await close_clients()


async def read_values(log: KafkaLog, state_partition: int = 0) -> list[bytes | None]:
    found = await read_all(log, range(state_partition, state_partition + 1))
    return [value for _, _, value in found.get(state_partition, [])]
