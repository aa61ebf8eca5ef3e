"""Replicas in groups of a real Kafka, as tests use them."""

import itertools
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from contextlib import asynccontextmanager
from time import monotonic

from coordinator.client import ClientSecurity
from coordinator.kafka.cluster import NoAnswer
from coordinator.kafka.group import Described, Found, Joined, Look, Synced
from coordinator.kafka.group_link import KafkaGroupLink
from coordinator.ownership.limits import GroupLimits
from tests.unit.ownership.replicas import Fleet

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


class CuttableLink:
    """A link to a real Kafka that can be cut: its connections close, and no others are made."""

    def __init__(self, link: KafkaGroupLink) -> None:
        self._link = link
        self.cut = False

    async def _check(self) -> None:
        if self.cut:
            await self._link.close()
            raise NoAnswer("cut", sent=False)

    async def find_coordinator(self) -> Found:
        await self._check()
        return await self._link.find_coordinator()

    async def join(self, node: int, member_id: str, metadata: bytes, instance_id: str) -> Joined:
        await self._check()
        return await self._link.join(node, member_id, metadata, instance_id)

    async def sync(
        self, node: int, generation: int, member_id: str, assignments: Mapping[str, bytes], instance_id: str
    ) -> Synced:
        await self._check()
        return await self._link.sync(node, generation, member_id, assignments, instance_id)

    async def heartbeat(self, node: int, generation: int, member_id: str, instance_id: str) -> int:
        await self._check()
        return await self._link.heartbeat(node, generation, member_id, instance_id)

    async def leave(self, node: int, member_id: str) -> int:
        await self._check()
        return await self._link.leave(node, member_id)

    async def describe(self, node: int) -> Described:
        await self._check()
        return await self._link.describe(node)

    async def leaders(self) -> Mapping[int, int]:
        return await self._link.leaders()

    async def look(self, choose: Callable[[Mapping[int, int]], Collection[int]]) -> Look | None:
        return None if self.cut else await self._link.look(choose)

    async def close(self) -> None:
        await self._link.close()


@asynccontextmanager
async def fleet_of(
    bootstrap: str,
    topic: str = "no-such-topic",
    *,
    limits: GroupLimits = PATIENT,
    security: ClientSecurity | None = None,
) -> AsyncIterator[Fleet]:
    """Give a fleet whose replicas run as in a coordinator, each on a thread of its own; stop them all."""
    group_id = f"coordinators-{next(_groups)}"

    def link() -> CuttableLink:
        return CuttableLink(
            KafkaGroupLink(
                bootstrap,
                group_id,
                topic,
                security=security,
                session_timeout_s=limits.session_timeout_s,
                rebalance_timeout_s=limits.rebalance_timeout_s,
                request_timeout_s=4.0,
            )
        )

    fleet = Fleet(
        link, group_id=group_id, limits=limits, monotonic=monotonic, own_thread=True, patience_s=PATIENCE_S
    )
    try:
        yield fleet
    finally:
        await fleet.stop()
