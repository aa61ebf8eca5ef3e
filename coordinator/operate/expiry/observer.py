"""Query Kafka periodically for the groups and topics of the local state, and keep their history.

The history of the groups is stored in a file, so that a restart does not reset the retention times. A stored
observation is used only if the group's epoch confirms it (see `observations`). If the file is missing,
unreadable or of another cluster, all retention times start again. State then expires late, never early.
"""

import asyncio
import logging
import os
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

import msgspec

from coordinator.cluster.kafka.share_group_types import (
    ChangeResult,
    GroupDescription,
    GroupOffset,
    ResolvedTopicIds,
)
from coordinator.errors import LogUnavailable
from coordinator.operate.expiry.observations import GroupObservation, ObservationGaps, observe_group
from coordinator.operate.expiry.rules import ClusterView, HeldState
from coordinator.process.clock import Clock
from coordinator.serve.runtime import Runtime
from protocol.errors import ErrorCode
from protocol.routing import state_partition
from protocol.state_records import SharePartitionKey

_logger = logging.getLogger(__name__)

_VERSION = 1


class StoredObservations(msgspec.Struct, frozen=True):
    """The observations of one cluster's groups by name."""

    cluster_id: str
    groups: dict[str, GroupObservation]
    version: int = _VERSION


class ObservationStore:
    """Stores observations in a file, which is replaced atomically. Write errors are logged and not raised."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._failed = False

    async def load(self) -> StoredObservations | None:
        return await asyncio.to_thread(self._load_observations)

    async def save(self, memory: StoredObservations) -> None:
        data = msgspec.json.encode(memory)
        await asyncio.to_thread(self._save_observations, data)

    def _load_observations(self) -> StoredObservations | None:
        try:
            memory = msgspec.json.decode(self._path.read_bytes(), type=StoredObservations)
        except FileNotFoundError:
            return None
        except (OSError, msgspec.DecodeError) as error:
            _logger.warning("Cannot read %s: %s. Retention times start again.", self._path, error)
            return None
        return memory if memory.version == _VERSION else None

    def _save_observations(self, data: bytes) -> None:
        new = self._path.with_name(f"{self._path.name}.{os.getpid()}")
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with new.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            new.replace(self._path)
        except OSError as error:
            if not self._failed:
                _logger.warning(
                    "Cannot write %s: %s. Retention times will start again at a restart.", self._path, error
                )
            self._failed = True
        else:
            self._failed = False


# Number of items that are processed before yielding to the event loop.
SLICE = 500


class GroupAdmin(Protocol):
    """Requests about groups and topics; implemented by `coordinator.cluster.kafka.share_groups`."""

    async def list_groups(self) -> set[str]: ...
    async def list_offsets(self, groups: Collection[str]) -> list[GroupOffset]: ...
    async def groups_without_offsets(self, groups: Collection[str]) -> set[str]: ...
    async def describe_groups(self, groups: Collection[str]) -> dict[str, GroupDescription]: ...
    async def delete_offsets(self, group: str, topics: Sequence[str]) -> dict[str, ChangeResult]: ...
    async def delete_groups(self, groups: Collection[str]) -> dict[str, ChangeResult]: ...
    async def resolve_topic_ids(self, topic_ids: Sequence[bytes]) -> ResolvedTopicIds: ...
    async def close(self) -> None: ...


class ClusterObservation(NamedTuple):
    """The local state and the view of the cluster at one time."""

    now_ms: int
    held: Sequence[HeldState]
    seen: ClusterView
    # The reason why missing topics are not treated as deleted; None if missing topics are treated as deleted.
    warning: str | None


class GroupObserver:
    """Makes observations and keeps their history.

    All methods must be called on one event loop, one observation at a time.
    """

    def __init__(
        self,
        runtime: Runtime,
        groups: GroupAdmin,
        *,
        clock: Clock,
        gaps: ObservationGaps,
        file: ObservationStore | None,
        has_other_owners: bool,
    ) -> None:
        """Create the observer.

        If other coordinators own shards (`has_other_owners`), their groups are observed too, because the
        shards may move to this coordinator.
        """
        self._runtime = runtime
        self._groups = groups
        self._clock = clock
        self._gaps = gaps
        self._file = file
        self._has_other_owners = has_other_owners
        self._loaded = False
        self._cluster_id = ""
        self._observations: dict[str, GroupObservation] = {}
        self._missing: dict[bytes, int] = {}
        self._names: dict[bytes, str] = {}

    async def observe(self, *, all_groups: bool) -> ClusterObservation:
        """Query Kafka for groups and for the topics of the local state. Raises LogError if Kafka does not
        answer.

        Without `all_groups`, observe only the groups that this coordinator leads: it owns the shard of
        partition 0 of one of their topics. Each group is therefore observed by only a few coordinators.
        """
        if not self._loaded:
            await self._load_observations()
        # While a shard is being loaded, its groups seem to have no local state, but must keep their history.
        is_whole = self._runtime.initial_load_done
        held = await self._list_held_states()
        groups = {part.group_id for part in held if part.leads or all_groups}
        topic_ids = {part.topic_id for part in held}
        presence = await self._groups.resolve_topic_ids(sorted(topic_ids))
        if self._has_other_owners and all_groups:
            groups |= await self._list_groups()
        described = await self._groups.describe_groups(groups)
        # Take the time after the last response: retention times may start late, but never early.
        now_ms = self._clock.now_ms()
        self._reset_if_cluster_changed(presence.cluster_id)
        warning = self._update_topics(topic_ids, presence, now_ms)
        initialized_ms: dict[str, int] = {}
        for part in held:
            known_ms = initialized_ms.get(part.group_id, 0)
            initialized_ms[part.group_id] = max(known_ms, part.initialized_ms)
        kept = {} if is_whole and all_groups else self._observations
        unanswered = await self._update_groups(
            described, initialized_ms, now_ms, ignore_missing=warning is not None
        )
        self._observations = {**kept, **self._observations}
        if self._file is not None:
            await self._file.save(StoredObservations(self._cluster_id, self._observations))
        unclear = topic_ids - presence.names.keys() - presence.missing
        seen = ClusterView(
            dict(self._observations), unanswered, dict(self._names), dict(self._missing), unclear
        )
        return ClusterObservation(now_ms, held, seen, warning)

    async def _list_groups(self) -> set[str]:
        """Return all groups; if a broker does not list its groups, return the groups observed before."""
        try:
            return await self._groups.list_groups()
        except LogUnavailable:
            return set(self._observations)

    def _owns_partition_zero(self, group_id: str, topic_id: bytes) -> bool:
        first = SharePartitionKey(group_id, topic_id, 0)
        return self._runtime.owns(state_partition(first, self._runtime.state_partitions))

    async def _load_observations(self) -> None:
        memory = await self._file.load() if self._file is not None else None
        if memory is not None:
            self._cluster_id, self._observations = memory.cluster_id, dict(memory.groups)
        self._loaded = True

    async def _list_held_states(self) -> list[HeldState]:
        partitions: defaultdict[tuple[str, bytes], list[int]] = defaultdict(list)
        initialized_ms: defaultdict[tuple[str, bytes], int] = defaultdict(int)
        async for key, state in self._runtime.share_partitions():
            topic = (key.group_id, key.topic_id)
            partitions[topic].append(key.partition)
            # Only initialisation and changes of offsets set this time; writes of consumers do not.
            initialized_ms[topic] = max(initialized_ms[topic], state.create_timestamp)
        held: list[HeldState] = []
        for group_id, topic_id in partitions:
            found = tuple(sorted(partitions[group_id, topic_id]))
            leads = self._owns_partition_zero(group_id, topic_id)
            held.append(HeldState(group_id, topic_id, found, initialized_ms[group_id, topic_id], leads))
            if len(held) % SLICE == 0:
                await asyncio.sleep(0)
        return held

    def _reset_if_cluster_changed(self, cluster_id: str) -> None:
        if not cluster_id:
            # No broker returned the cluster id.
            return
        if self._cluster_id and cluster_id != self._cluster_id:
            _logger.warning(
                "The cluster id is %s and was %s. Retention times start again.",
                cluster_id,
                self._cluster_id,
            )
            self._observations.clear()
            self._missing.clear()
            self._names.clear()
        self._cluster_id = cluster_id

    def _update_topics(
        self, topic_ids: Collection[bytes], presence: ResolvedTopicIds, now_ms: int
    ) -> str | None:
        self._names = {
            topic_id: name for topic_id, name in self._names.items() if topic_id in topic_ids
        } | presence.names
        unknown = topic_ids and not presence.names
        if unknown:
            # Probably bootstrap.servers selects another cluster. It is unlikely that all topics were deleted.
            self._missing.clear()
            return (
                f"The cluster knows none of the {len(topic_ids)} topics that have state, so they are not "
                "treated as deleted."
            )
        before = self._missing
        self._missing = {topic_id: before.get(topic_id, now_ms) for topic_id in presence.missing}
        for topic_id, since_ms in before.items():
            if topic_id in topic_ids and topic_id not in presence.names:
                self._missing.setdefault(topic_id, since_ms)
        return None

    async def _update_groups(
        self,
        described: Mapping[str, GroupDescription],
        initialized_ms: Mapping[str, int],
        now_ms: int,
        *,
        ignore_missing: bool,
    ) -> frozenset[str]:
        """Update the observations from descriptions; return the groups whose coordinators did not answer."""
        unanswered = set()
        observations = {}
        for number, (group, seen) in enumerate(described.items(), 1):
            if number % SLICE == 0:
                await asyncio.sleep(0)
            is_not_found = seen.error_code == ErrorCode.GROUP_ID_NOT_FOUND
            if seen.error_code != ErrorCode.NONE and (ignore_missing or not is_not_found):
                unanswered.add(group)
            if is_not_found and ignore_missing:
                continue
            observation = observe_group(
                self._observations.get(group),
                seen,
                now_ms=now_ms,
                gaps=self._gaps,
                initialized_ms=initialized_ms.get(group),
            )
            if observation is not None:
                observations[group] = observation
        self._observations = observations
        return frozenset(unanswered)
