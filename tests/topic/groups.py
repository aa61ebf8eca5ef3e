"""Run coordinators (replicas) in groups of a real Kafka."""

import itertools
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from contextlib import asynccontextmanager
from time import monotonic

from coordinator.client import ClientSecurity
from coordinator.cluster.kafka.cluster import NoResponse
from coordinator.cluster.kafka.group import (
    DescribeResult,
    FindCoordinatorResult,
    JoinResult,
    MetadataSnapshot,
    SyncResult,
)
from coordinator.cluster.kafka.group_client import KafkaGroupClient
from coordinator.cluster.ownership.limits import GroupLimits
from tests.unit.ownership.replicas import ReplicaGroup

# A short session timeout, for tests that wait until a session expires.
LIMITS = GroupLimits(session_timeout_s=12.0, heartbeat_interval_s=0.5)
# A long session timeout for all other tests, so that no member is removed on a busy machine. If such a test
# ends earlier, it did not wait for the session timeout.
PATIENT = LIMITS._replace(session_timeout_s=60.0, rebalance_timeout_s=60.0)
# The maximum number of seconds of any wait.
PATIENCE_S = 120.0

_groups = itertools.count()


def group_settings(bootstrap: str, topic: str, shards: int) -> dict[str, str]:
    """Return the settings of a coordinator in a group that is named after its state topic with `shards`
    partitions.
    """
    return {
        "bootstrap.servers": bootstrap,
        "ownership": "group",
        "group.id": topic,
        # A long session timeout, so that a coordinator on a busy machine loses no shard.
        "session.timeout.ms": "30000",
        "share.coordinator.state.topic.name": topic,
        "share.coordinator.state.topic.num.partitions": str(shards),
    }


class CuttableGroupClient:
    """A connection to a real Kafka that can be cut: then existing connections close, and requests fail."""

    def __init__(self, link: KafkaGroupClient) -> None:
        self._group_client = link
        self.cut = False

    async def _check_connected(self) -> None:
        if self.cut:
            await self._group_client.close()
            raise NoResponse("cut", sent=False)

    async def find_coordinator(self) -> FindCoordinatorResult:
        await self._check_connected()
        return await self._group_client.find_coordinator()

    async def join(self, node: int, member_id: str, metadata: bytes, instance_id: str) -> JoinResult:
        await self._check_connected()
        return await self._group_client.join(node, member_id, metadata, instance_id)

    async def sync(
        self, node: int, generation: int, member_id: str, assignments: Mapping[str, bytes], instance_id: str
    ) -> SyncResult:
        await self._check_connected()
        return await self._group_client.sync(node, generation, member_id, assignments, instance_id)

    async def heartbeat(self, node: int, generation: int, member_id: str, instance_id: str) -> int:
        await self._check_connected()
        return await self._group_client.heartbeat(node, generation, member_id, instance_id)

    async def leave(self, node: int, member_id: str) -> int:
        await self._check_connected()
        return await self._group_client.leave(node, member_id)

    async def describe(self, node: int) -> DescribeResult:
        await self._check_connected()
        return await self._group_client.describe(node)

    async def leaders_by_partition(self) -> Mapping[int, int]:
        return await self._group_client.leaders_by_partition()

    async def probe_leaders(
        self, choose: Callable[[Mapping[int, int]], Collection[int]]
    ) -> MetadataSnapshot | None:
        return None if self.cut else await self._group_client.probe_leaders(choose)

    async def close(self) -> None:
        await self._group_client.close()


@asynccontextmanager
async def run_fleet(
    bootstrap: str,
    topic: str = "no-such-topic",
    *,
    limits: GroupLimits = PATIENT,
    security: ClientSecurity | None = None,
) -> AsyncIterator[ReplicaGroup]:
    """Yield a fleet whose replicas run on separate threads, as in a coordinator. Stop all replicas at
    the end.
    """
    group_id = f"coordinators-{next(_groups)}"

    def make_client() -> CuttableGroupClient:
        return CuttableGroupClient(
            KafkaGroupClient(
                bootstrap,
                group_id,
                topic,
                security=security,
                session_timeout_s=limits.session_timeout_s,
                rebalance_timeout_s=limits.rebalance_timeout_s,
                request_timeout_s=4.0,
            )
        )

    fleet = ReplicaGroup(
        make_client,
        group_id=group_id,
        limits=limits,
        monotonic=monotonic,
        own_thread=True,
        patience_s=PATIENCE_S,
    )
    try:
        yield fleet
    finally:
        await fleet.stop()
