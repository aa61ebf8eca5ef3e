"""Coordinators whose expiry uses a Kafka cluster in memory."""

import asyncio
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager
from typing import Any

from coordinator.metrics import Metrics
from coordinator.operate.expiry import Expiry, ExpiryRules, ObservationStore
from coordinator.serve.runtime import Runtime
from protocol.messages.share_snapshot import ShareSnapshotValue
from protocol.routing import state_partition
from protocol.state_records import SharePartitionKey, StateRecord
from tests.kafka_in_memory.share_group_cluster import ShareGroupCluster
from tests.kafka_in_memory.share_groups import ShareGroup, topic_id
from tests.manual_clock import ManualClock
from tests.unit.admin.admin_server import SHARDS, make_memory_log
from tests.unit.runtime.runtime_without_jobs import make_runtime

MINUTE_MS = 60_000
RULES = ExpiryRules(retention_minutes=100, grace_minutes=60)
INTERVAL_MINUTES = 10
RETENTION, GRACE = RULES.retention_minutes or 0, RULES.grace_minutes


class ExpiryReplica:
    """A coordinator that owns some shards. The test starts each expiry round."""

    def __init__(
        self, cluster: ShareGroupCluster, clock: ManualClock, runtime: Runtime, **options: Any
    ) -> None:
        self.clock = clock
        self.runtime = runtime
        self.metrics = Metrics()
        self.expiry = Expiry(
            runtime,
            cluster.new_client(),
            options.pop("rules", RULES),
            interval_s=INTERVAL_MINUTES * 60,
            clock=clock,
            metrics=self.metrics,
            **options,
        )

    async def advance_with_rounds(self, minutes: int) -> None:
        """Advance the clock by `minutes`, with a round after each interval."""
        for _ in range(minutes // INTERVAL_MINUTES):
            self.clock.advance(INTERVAL_MINUTES)
            await self.expiry.run_round()

    async def delete_state(self, group: str, topic: str) -> None:
        for key in await self.list_keys():
            if (key.group_id, key.topic_id) == (group, topic_id(topic)):
                shard = self.runtime._runners[state_partition(key, SHARDS)].shard
                shard.apply(StateRecord(key, None), 0)

    async def list_keys(self) -> list[SharePartitionKey]:
        return sorted([key async for key, _ in self.runtime.share_partitions()])

    async def list_topics(self) -> set[tuple[str, str]]:
        """Return the (group, topic) pairs that have state."""
        return {(key.group_id, key.topic_id.decode().rstrip("-")) for key in await self.list_keys()}

    async def status_by_topic(self) -> dict[tuple[str, str | None], tuple[str, str]]:
        """Return reason and status of the abandoned state, by group and topic."""
        items = (await self.expiry.forecast()).items
        return {(each.group_id, each.topic): (each.reason, each.status) for each in items}

    def read_counter(self, name: str, **labels: str) -> float:
        return self.metrics.registry.get_sample_value(f"share_coordinator_{name}", labels) or 0


def make_state(group: str, topic: str, partition: int = 0, *, initialized_ms: int = 1) -> StateRecord:
    value = ShareSnapshotValue(0, 1, 0, 0, initialized_ms, initialized_ms, b"", 0)
    return StateRecord(SharePartitionKey(group, topic_id(topic), partition), value)


@asynccontextmanager
async def run_replica(
    cluster: ShareGroupCluster,
    clock: ManualClock,
    records: Sequence[StateRecord],
    *,
    shards: Collection[int] = range(SHARDS),
    file: ObservationStore | None = None,
    **options: Any,
) -> AsyncIterator[ExpiryReplica]:
    """Start a coordinator that has loaded the records of its shards."""
    runtime = make_runtime(await make_memory_log(records), SHARDS)
    await runtime.start(elect_all=False)
    for shard in shards:
        runtime.elect(shard)
    while runtime.health():  # noqa: ASYNC110 (loading from memory needs loop iterations, not time)
        await asyncio.sleep(0)
    replica = ExpiryReplica(cluster, clock, runtime, file=file, **options)
    cluster.state_deleted.append(replica.delete_state)
    try:
        yield replica
    finally:
        cluster.state_deleted.remove(replica.delete_state)
        await replica.expiry.stop()
        await runtime.stop()


# State of another topic. If the cluster knew none of the topics, expiry would assume a different cluster.
KNOWN = make_state("other", "known")


def make_cluster(*topics: str, **groups: ShareGroup) -> ShareGroupCluster:
    """Return a cluster with these topics and groups, and with another group that has a member."""
    cluster = ShareGroupCluster()
    cluster.topics = {"known", *topics}
    cluster.groups = {"other": ShareGroup("known"), **groups}
    cluster.groups["other"].join("known")
    return cluster


def split_shards(group: str, topic: str) -> tuple[list[int], list[int]]:
    """Return the shard of partition 0 of a topic, and all other shards."""
    first = state_partition(SharePartitionKey(group, topic_id(topic), 0), SHARDS)
    return [first], [shard for shard in range(SHARDS) if shard != first]
