"""A cluster in memory whose groups and topics tests create and delete, and coordinators that use it."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from typing import Any

from coordinator.cluster.kafka.share_group_types import (
    EMPTY,
    ChangeResult,
    GroupDescription,
    GroupOffset,
    ResolvedTopicIds,
)
from coordinator.errors import LogUnavailable
from coordinator.metrics import Metrics
from coordinator.operate.expiry import Expiry, ExpiryRules, ObservationStore
from coordinator.serve.runtime import Runtime
from protocol.errors import ErrorCode
from protocol.messages.share_snapshot import ShareSnapshotValue
from protocol.routing import state_partition
from protocol.state_records import SharePartitionKey, StateRecord
from tests.manual_clock import ManualClock
from tests.unit.admin.admin_server import SHARDS, make_memory_log
from tests.unit.runtime.runtime_without_jobs import make_runtime

MINUTE_MS = 60_000
RULES = ExpiryRules(retention_minutes=100, grace_minutes=60)
LOOK_MINUTES = 10
RETENTION, GRACE = RULES.retention_minutes or 0, RULES.grace_minutes


def topic_id(topic: str) -> bytes:
    return topic.encode().ljust(16, b"-")


class FakeGroup:
    """A share group at its group coordinator. Each member is the set of its subscribed topics."""

    def __init__(self, *topics: str) -> None:
        self.members: list[frozenset[str]] = []
        self.group_epoch = 2
        # The topics that Kafka considers initialised in this group.
        self.topics = set(topics)

    def join(self, *topics: str) -> None:
        self.members.append(frozenset(topics))
        self.group_epoch += 1

    def leave(self) -> None:
        self.members.pop()
        self.group_epoch += 1

    def describe(self) -> GroupDescription:
        state = "Stable" if self.members else EMPTY
        subscribed = frozenset[str]().union(*self.members)
        return GroupDescription(0, "", state, self.group_epoch, len(self.members), subscribed)


class FakeCluster:
    """Groups and topics by name. A deletion succeeds after the share coordinators have deleted the state."""

    def __init__(self) -> None:
        self.cluster_id = "cluster"
        self.groups: dict[str, FakeGroup] = {}
        self.topics: set[str] = set()
        self.hidden_topics: set[str] = set()
        self.deaf_groups: set[str] = set()
        # The result of deletions from a group.
        self.refusals: dict[str, ChangeResult] = {}
        self.is_down = False
        self.coordinators: list[ExpiryReplica] = []
        self.deletes_state = True
        self.described: list[str] = []
        self.deletions: list[tuple[str, tuple[str, ...]]] = []
        self.deleted_groups: list[str] = []
        # A function to call once, before the next resolve, describe, names or delete request.
        self.before: dict[str, Callable[[], Awaitable[None]]] = {}

    async def _begin_request(self, what: str) -> None:
        if self.is_down:
            raise LogUnavailable("No broker of kafka:9092 can be reached (refused).")
        happens = self.before.pop(what, None)
        if happens is not None:
            await happens()

    async def resolve_topic_ids(self, topic_ids: Sequence[bytes]) -> ResolvedTopicIds:
        await self._begin_request("resolve")
        names = {topic_id(name): name for name in self.topics if topic_id(name) in topic_ids}
        hidden = {topic_id(name) for name in self.hidden_topics}
        missing = frozenset(topic_ids) - names.keys() - hidden
        return ResolvedTopicIds(self.cluster_id, names, missing)

    async def names(self) -> set[str]:
        await self._begin_request("names")
        return set(self.groups)

    async def offsets(self, groups: Collection[str]) -> list[GroupOffset]:
        return [
            GroupOffset(group, topic_id(topic), partition, 0)
            for group in groups
            if group in self.groups
            for topic in self.groups[group].topics
            for partition in range(3)
        ]

    async def groups_without_offsets(self, groups: Collection[str]) -> set[str]:
        return {group for group in groups if not self.groups[group].topics - self.hidden_topics}

    async def describe_groups(self, groups: Collection[str]) -> dict[str, GroupDescription]:
        await self._begin_request("describe")
        self.described += sorted(groups)
        return {
            group: GroupDescription(15, "its coordinator was not found")
            if group in self.deaf_groups
            else self.groups[group].describe()
            if group in self.groups
            else GroupDescription(ErrorCode.GROUP_ID_NOT_FOUND)
            for group in groups
        }

    async def delete_offsets(self, group: str, topics: Sequence[str]) -> dict[str, ChangeResult]:
        await self._begin_request("delete")
        self.deletions.append((group, tuple(topics)))
        if group in self.refusals:
            return dict.fromkeys(topics, self.refusals[group])
        if group not in self.groups:
            return dict.fromkeys(topics, ChangeResult(ErrorCode.GROUP_ID_NOT_FOUND))
        if self.groups[group].members:
            return dict.fromkeys(topics, ChangeResult(ErrorCode.NON_EMPTY_GROUP, "The group is not empty."))
        outcomes = {}
        for topic in topics:
            if topic not in self.groups[group].topics:
                outcomes[topic] = ChangeResult(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
                continue
            self.groups[group].topics.discard(topic)
            outcomes[topic] = ChangeResult(0)
            if self.deletes_state:
                for coordinator in self.coordinators:
                    await coordinator.delete_state(group, topic)
        return outcomes

    async def delete_groups(self, groups: Collection[str]) -> dict[str, ChangeResult]:
        self.deleted_groups += groups
        for group in groups:
            del self.groups[group]
        return dict.fromkeys(groups, ChangeResult(0))

    async def close(self) -> None:
        pass


class ExpiryReplica:
    """A coordinator that owns some of the shards. The test starts its rounds of expiry."""

    def __init__(self, cluster: FakeCluster, clock: ManualClock, runtime: Runtime, **options: Any) -> None:
        self.cluster = cluster
        self.clock = clock
        self.runtime = runtime
        self.metrics = Metrics()
        self.expiry = Expiry(
            runtime,
            cluster,
            options.pop("rules", RULES),
            interval_s=LOOK_MINUTES * 60,
            clock=clock,
            metrics=self.metrics,
            **options,
        )

    async def advance_with_rounds(self, minutes: int) -> None:
        """Advance the clock by `minutes`, with a round after each interval."""
        for _ in range(minutes // LOOK_MINUTES):
            self.clock.advance(LOOK_MINUTES)
            await self.expiry.run_round()

    async def delete_state(self, group: str, topic: str) -> None:
        """Delete state, as a request of a broker does."""
        for key in await self.keys():
            if (key.group_id, key.topic_id) == (group, topic_id(topic)):
                shard = self.runtime._runners[state_partition(key, SHARDS)].shard
                shard.apply(StateRecord(key, None), 0)

    async def keys(self) -> list[SharePartitionKey]:
        return sorted([key async for key, _ in self.runtime.share_partitions()])

    async def topics(self) -> set[tuple[str, str]]:
        """Return the (group, topic) pairs that have state."""
        return {(key.group_id, key.topic_id.decode().rstrip("-")) for key in await self.keys()}

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
    cluster: FakeCluster,
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
    one = ExpiryReplica(cluster, clock, runtime, file=file, **options)
    cluster.coordinators.append(one)
    try:
        yield one
    finally:
        cluster.coordinators.remove(one)
        await one.expiry.stop()
        await runtime.stop()


# State of another topic. If the cluster knew none of the topics, expiry would assume a different cluster.
KNOWN = make_state("other", "known")


def make_cluster(*topics: str, **groups: FakeGroup) -> FakeCluster:
    """Return a cluster with these topics and groups, and with another group that has a member."""
    cluster = FakeCluster()
    cluster.topics = {"known", *topics}
    cluster.groups = {"other": FakeGroup("known"), **groups}
    cluster.groups["other"].join("known")
    return cluster


def split_shards(group: str, topic: str) -> tuple[list[int], list[int]]:
    """Return the shard of partition 0 of a topic, and all other shards."""
    first = state_partition(SharePartitionKey(group, topic_id(topic), 0), SHARDS)
    return [first], [shard for shard in range(SHARDS) if shard != first]
