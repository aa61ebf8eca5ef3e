"""Replicas in groups of a real Kafka, as tests use them."""

import itertools
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from contextlib import asynccontextmanager
from time import monotonic

from coordinator.client import ClientSecurity
from coordinator.kafka.cluster import NoResponse
from coordinator.kafka.group import CoordinatorLookup, Described, JoinResult, MetadataSnapshot, SyncResult
from coordinator.kafka.group_client import KafkaGroupClient
from coordinator.ownership.limits import GroupLimits
from tests.unit.ownership.replicas import ReplicaGroup

# For what waits until a session is over.
LIMITS = GroupLimits(session_timeout_s=12.0, heartbeat_interval_s=0.5)
# For all else: so long that what takes less did not wait for its end, and that nobody is thrown out or left
# behind because the machine has more to do.
PATIENT = LIMITS._replace(session_timeout_s=60.0, rebalance_timeout_s=60.0)
# How long anything may take that is waited for.
PATIENCE_S = 120.0

_groups = itertools.count()


def sharing(bootstrap: str, topic: str, shards: int) -> dict[str, str]:
    """Return the settings of a coordinator that shares a topic of so many shards, in a group of its name."""
    return {
        "bootstrap.servers": bootstrap,
        "ownership": "group",
        "group.id": topic,
        # Nobody is to lose a shard because the machine is busy.
        "session.timeout.ms": "30000",
        "share.coordinator.state.topic.name": topic,
        "share.coordinator.state.topic.num.partitions": str(shards),
    }


class CuttableGroupClient:
    """A link to a real Kafka that can be cut: its connections close, and no others are made."""

    def __init__(self, link: KafkaGroupClient) -> None:
        self._group_client = link
        self.cut = False

    async def _check(self) -> None:
        if self.cut:
            await self._group_client.close()
            raise NoResponse("cut", sent=False)

    async def find_coordinator(self) -> CoordinatorLookup:
        await self._check()
        return await self._group_client.find_coordinator()

    async def join(self, node: int, member_id: str, metadata: bytes, instance_id: str) -> JoinResult:
        await self._check()
        return await self._group_client.join(node, member_id, metadata, instance_id)

    async def sync(
        self, node: int, generation: int, member_id: str, assignments: Mapping[str, bytes], instance_id: str
    ) -> SyncResult:
        await self._check()
        return await self._group_client.sync(node, generation, member_id, assignments, instance_id)

    async def heartbeat(self, node: int, generation: int, member_id: str, instance_id: str) -> int:
        await self._check()
        return await self._group_client.heartbeat(node, generation, member_id, instance_id)

    async def leave(self, node: int, member_id: str) -> int:
        await self._check()
        return await self._group_client.leave(node, member_id)

    async def describe(self, node: int) -> Described:
        await self._check()
        return await self._group_client.describe(node)

    async def leaders(self) -> Mapping[int, int]:
        return await self._group_client.leaders()

    async def probe_leaders(
        self, choose: Callable[[Mapping[int, int]], Collection[int]]
    ) -> MetadataSnapshot | None:
        return None if self.cut else await self._group_client.probe_leaders(choose)

    async def close(self) -> None:
        await self._group_client.close()


@asynccontextmanager
async def fleet_of(
    bootstrap: str,
    topic: str = "no-such-topic",
    *,
    limits: GroupLimits = PATIENT,
    security: ClientSecurity | None = None,
) -> AsyncIterator[ReplicaGroup]:
    """Give a fleet whose replicas run as in a coordinator, each on a thread of its own; stop them all."""
    group_id = f"coordinators-{next(_groups)}"

    def link() -> CuttableGroupClient:
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
        link, group_id=group_id, limits=limits, monotonic=monotonic, own_thread=True, patience_s=PATIENCE_S
    )
    try:
        yield fleet
    finally:
        await fleet.stop()
