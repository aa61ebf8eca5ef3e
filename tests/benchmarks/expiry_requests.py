"""Count the requests that the expiry of abandoned state sends to Kafka, by the number of coordinators.

The expiry of one coordinator runs on virtual time with as many brokers in memory as there are coordinators.
"""

import asyncio
from collections.abc import AsyncIterator
from random import Random
from types import SimpleNamespace

from coordinator.cluster.kafka.share_groups import ShareGroups as ShareGroupClient
from coordinator.config import Config
from coordinator.metrics import Metrics
from coordinator.operate.expiry import Expiry, ExpiryRules
from protocol.routing import state_partition
from protocol.state_records import SharePartitionKey
from tests.kafka_in_memory.share_groups import ShareGroupsWithoutCreation
from tests.manual_clock import ManualClock
from tests.simulation.kafka.brokers import BrokerFaults, SimBrokers
from tests.simulation.kafka.connections import connect_to_brokers
from tests.simulation.loop import SimLoop

SHARDS = 1_000
GROUPS = 10_000
# Kafka's default of offsets.retention.minutes.
RETENTION_MINUTES = 10_080
TOPIC_ID = bytes(range(16))


class OwnedStates:
    """A replacement of `Runtime` for expiry, with the states that one of several coordinators owns.

    The coordinator owns one share-partition of each share group.
    """

    state_partitions = SHARDS
    initial_load_done = True

    def __init__(self, coordinators: int) -> None:
        self._coordinators = coordinators
        keys = (SharePartitionKey(f"group-{number}", TOPIC_ID, 0) for number in range(GROUPS))
        self._keys = [
            key if self.owns(state_partition(key, SHARDS)) else key._replace(partition=1) for key in keys
        ]

    def owns(self, shard: int) -> bool:
        return shard % self._coordinators == 0

    def owned_shards(self) -> list[int]:
        return list(range(0, SHARDS, self._coordinators))

    async def share_partitions(self) -> AsyncIterator[tuple[SharePartitionKey, SimpleNamespace]]:
        for key in self._keys:
            yield key, SimpleNamespace(create_timestamp=1)


async def _count_requests(coordinators: int, minutes: int) -> float:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, SimLoop)
    brokers = SimBrokers(loop, Random(1), BrokerFaults(), nodes=coordinators, partitions=1)

    async def refuse_deletion(group: str, topic: str) -> int:
        raise AssertionError("no group is empty")

    network = connect_to_brokers(brokers, 30.0, ShareGroupsWithoutCreation(refuse_deletion))
    servers = "broker-1:9092,broker-2:9092"
    config = Config()
    clock = ManualClock()
    interval_minutes = config.state_retention_check_interval_ms // 60_000
    expiry = Expiry(
        OwnedStates(coordinators),  # type: ignore[arg-type]
        ShareGroupClient(servers),
        ExpiryRules(RETENTION_MINUTES, config.state_missing_grace_minutes),
        interval_s=60.0 * interval_minutes,
        clock=clock,
        metrics=Metrics(),
        has_other_owners=True,
    )
    for _ in range(0, minutes, interval_minutes):
        await expiry.run_round(all_groups=False)
        clock.advance(interval_minutes)
    await expiry.stop()
    requests = sum(broker.requests.total() for broker in network.served_by.values())
    return requests / (60.0 * minutes)


def measure_expiry_requests(coordinators: int, minutes: int = RETENTION_MINUTES // 10) -> float:
    """Return the requests per second of one of `coordinators` coordinators, with 10 000 share groups.

    The rate is the average of the first `minutes`.
    """
    loop = SimLoop()
    try:
        requests_per_s: float = loop.run_until_complete(_count_requests(coordinators, minutes))
        assert loop.failures == []
        return requests_per_s
    finally:
        loop.close()
