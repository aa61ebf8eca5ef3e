"""One look at the cluster after the other, and what they tell together of the state that is here."""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple, Protocol

from coordinator.clock import Clock
from coordinator.errors import LogUnavailable
from coordinator.expiry.observation_store import ObservationStore, StoredObservations
from coordinator.expiry.observations import GroupObservation, observe_group
from coordinator.expiry.rules import ClusterView, HeldState
from coordinator.kafka.cluster import NONE
from coordinator.kafka.share_group_types import (
    GROUP_ID_NOT_FOUND,
    ChangeResult,
    GroupDescription,
    GroupOffset,
    ResolvedTopicIds,
)
from coordinator.runtime import Runtime
from protocol.routing import state_partition
from protocol.state_records import SharePartitionKey

_logger = logging.getLogger(__name__)

# Topics of groups, or groups, that are gone over before other work on the event loop gets its turn.
SLICE = 500


class GroupAdmin(Protocol):
    """The group coordinators of a cluster; `coordinator.kafka.share_groups` has the real ones."""

    async def names(self) -> set[str]: ...
    async def offsets(self, groups: Collection[str]) -> list[GroupOffset]: ...
    async def groups_without_offsets(self, groups: Collection[str]) -> set[str]: ...
    async def describe_groups(self, groups: Collection[str]) -> dict[str, GroupDescription]: ...
    async def delete_offsets(self, group: str, topics: Sequence[str]) -> dict[str, ChangeResult]: ...
    async def delete_groups(self, groups: Collection[str]) -> dict[str, ChangeResult]: ...
    async def close(self) -> None: ...


class TopicIds(Protocol):
    """The brokers of a cluster; `coordinator.kafka.topic_id_resolver` asks the real ones."""

    async def resolve(self, topic_ids: Sequence[bytes]) -> ResolvedTopicIds: ...
    async def close(self) -> None: ...


class ClusterObservation(NamedTuple):
    """What is held here, what is known of the cluster, and when that was."""

    now_ms: int
    held: Sequence[HeldState]
    seen: ClusterView
    # Why state of what the cluster does not have is left alone all the same.
    doubt: str | None


class Observer:
    """Looks, and remembers. Used on one event loop, one look at a time."""

    def __init__(
        self,
        runtime: Runtime,
        groups: GroupAdmin,
        topics: TopicIds,
        *,
        clock: Clock,
        gap_max_ms: int,
        file: ObservationStore | None,
        watch_all: bool,
    ) -> None:
        """With `watch_all` groups without state here are watched too: their state may come here."""
        self._runtime = runtime
        self._groups = groups
        self._topics = topics
        self._clock = clock
        self._gap_max_ms = gap_max_ms
        self._file = file
        self._begin_observations = watch_all
        self._loaded = False
        self._cluster_id = ""
        self._observations: dict[str, GroupObservation] = {}
        self._missing: dict[bytes, int] = {}
        self._names: dict[bytes, str] = {}

    async def observe(self) -> ClusterObservation:
        """Look at all that is held here. Raises LogError if the cluster cannot be asked."""
        if not self._loaded:
            await self._load()
        # The groups of a shard that is still being loaded are not gone, they are not here yet; and this look
        # does not have them, even if loading ends while the cluster is asked.
        is_whole = self._runtime.initial_load_done
        held = await self._held()
        groups = {part.group_id for part in held}
        topic_ids = {part.topic_id for part in held}
        presence = await self._topics.resolve(sorted(topic_ids))
        if self._begin_observations:
            groups |= await self._listed_groups()
        described = await self._groups.describe_groups(groups)
        # Not before all answers are here: clocks begin late rather than early.
        now_ms = self._clock.now_ms()
        self._follow_cluster(presence.cluster_id)
        doubt = self._note_topics(topic_ids, presence, now_ms)
        initialized_ms: dict[str, int] = {}
        for part in held:
            known_ms = initialized_ms.get(part.group_id, 0)
            initialized_ms[part.group_id] = max(known_ms, part.initialized_ms)
        not_here_yet = {} if is_whole else self._observations
        heard = await self._note_groups(described, initialized_ms, now_ms, doubtful=doubt is not None)
        self._observations = {**not_here_yet, **self._observations}
        if self._file is not None:
            await self._file.save(StoredObservations(self._cluster_id, self._observations))
        unclear = topic_ids - presence.names.keys() - presence.missing
        seen = ClusterView(dict(self._observations), heard, dict(self._names), dict(self._missing), unclear)
        return ClusterObservation(now_ms, held, seen, doubt)

    async def _listed_groups(self) -> set[str]:
        """Return all groups; while a broker does not list its groups, those that are watched already."""
        try:
            return await self._groups.names()
        except LogUnavailable:
            return set(self._observations)

    def _owns_first(self, group_id: str, topic_id: bytes) -> bool:
        """Tell whether the shard of a topic's partition 0 is ours: one coordinator sees to each topic."""
        first = SharePartitionKey(group_id, topic_id, 0)
        return self._runtime.owns(state_partition(first, self._runtime.state_partitions))

    async def _load(self) -> None:
        memory = await self._file.load() if self._file is not None else None
        if memory is not None:
            self._cluster_id, self._observations = memory.cluster_id, dict(memory.groups)
        self._loaded = True

    async def _held(self) -> list[HeldState]:
        partitions: defaultdict[tuple[str, bytes], list[int]] = defaultdict(list)
        initialized_ms: defaultdict[tuple[str, bytes], int] = defaultdict(int)
        async for key, state in self._runtime.share_partitions():
            topic = (key.group_id, key.topic_id)
            partitions[topic].append(key.partition)
            # Of all that is written only this is Kafka's group coordinator, or a person, who cares.
            initialized_ms[topic] = max(initialized_ms[topic], state.create_timestamp)
        held: list[HeldState] = []
        for group_id, topic_id in partitions:
            found = tuple(sorted(partitions[group_id, topic_id]))
            leads = self._owns_first(group_id, topic_id)
            held.append(HeldState(group_id, topic_id, found, initialized_ms[group_id, topic_id], leads))
            if len(held) % SLICE == 0:
                await asyncio.sleep(0)
        return held

    def _follow_cluster(self, cluster_id: str) -> None:
        if not cluster_id:
            # No broker has said which it is.
            return
        if self._cluster_id and cluster_id != self._cluster_id:
            _logger.warning(
                "this is the cluster %s and was %s: groups are watched from now on",
                cluster_id,
                self._cluster_id,
            )
            self._observations.clear()
            self._missing.clear()
            self._names.clear()
        self._cluster_id = cluster_id

    def _note_topics(
        self, topic_ids: Collection[bytes], presence: ResolvedTopicIds, now_ms: int
    ) -> str | None:
        self._names = {
            topic_id: name for topic_id, name in self._names.items() if topic_id in topic_ids
        } | presence.names
        unknown = topic_ids and not presence.names
        if unknown:
            # More likely than that all of them were deleted is that this is another cluster.
            self._missing.clear()
            return (
                f"The cluster knows none of the {len(topic_ids)} topics that there is state of: nothing is "
                "taken for deleted."
            )
        before = self._missing
        self._missing = {topic_id: before.get(topic_id, now_ms) for topic_id in presence.missing}
        for topic_id, since_ms in before.items():
            if topic_id in topic_ids and topic_id not in presence.names:
                self._missing.setdefault(topic_id, since_ms)
        return None

    async def _note_groups(
        self,
        described: Mapping[str, GroupDescription],
        initialized_ms: Mapping[str, int],
        now_ms: int,
        *,
        doubtful: bool,
    ) -> frozenset[str]:
        """Note descriptions; return the groups that something was heard of."""
        heard = set()
        watches = {}
        for number, (group, seen) in enumerate(described.items(), 1):
            if number % SLICE == 0:
                await asyncio.sleep(0)
            if seen.error_code == NONE or (seen.error_code == GROUP_ID_NOT_FOUND and not doubtful):
                heard.add(group)
            elif seen.error_code == GROUP_ID_NOT_FOUND:
                continue
            observation = observe_group(
                self._observations.get(group),
                seen,
                now_ms=now_ms,
                gap_max_ms=self._gap_max_ms,
                initialized_ms=initialized_ms.get(group),
            )
            if observation is not None:
                watches[group] = observation
        self._observations = watches
        return frozenset(heard)
