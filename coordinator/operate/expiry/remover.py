"""Delete abandoned state through Kafka's group coordinator, or locally if Kafka lacks the group or topic."""

import logging
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from typing import NamedTuple

from coordinator.cluster.kafka.share_group_types import GroupDescription, GroupOffset
from coordinator.errors import LogError
from coordinator.operate.expiry.observer import GroupAdmin
from coordinator.operate.expiry.rules import AbandonedState, AbandonmentReason
from coordinator.serve.runtime import AwaitableOperation, Runtime, ShardStatus
from coordinator.shard import CoordinatorResult, RequestContext, Shard, ShareState
from protocol.errors import ErrorCode, kafka_error
from protocol.routing import state_partition
from protocol.state_records import SharePartitionKey, StateRecord, topic_id_text

_logger = logging.getLogger(__name__)

# Limits of a round: groups deleted through Kafka, and share-partitions deleted locally.
GROUPS_MAX = 100
SHARE_PARTITIONS_MAX = 1_000

# Errors that mean, after all retries, that the group's coordinator is unavailable.
_COORDINATOR_UNAVAILABLE = (
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
)

_USED = "it was used since the last observation"


class RemovalResult(NamedTuple):
    """The result for due state of a group and topic; if `refused` is empty, all of it was deleted.

    `failed` marks an unexpected error, `unanswered` a group coordinator that did not answer.
    """

    abandoned: AbandonedState
    share_partitions: int
    refused: str = ""
    failed: bool = False
    unanswered: bool = False


class StateRemover:
    """Removes due state. Each method raises LogError if Kafka does not answer."""

    def __init__(self, runtime: Runtime, groups: GroupAdmin, has_fresh_lease: Callable[[], bool]) -> None:
        self._runtime = runtime
        self._groups = groups
        self._has_fresh_lease = has_fresh_lease
        # Groups whose last offsets may have been deleted.
        self._emptied_groups: set[str] = set()
        # Groups for which the last attempt failed; the others are processed first.
        self._deferred_groups: set[str] = set()

    async def remove_due_state(self, due: Sequence[AbandonedState]) -> AsyncIterator[RemovalResult]:
        """Remove due state up to the limits of a round; yield each result."""
        deleted = [
            each
            for each in due
            if each.reason in (AbandonmentReason.TOPIC_DELETED, AbandonmentReason.GROUP_DELETED)
        ]
        if deleted:
            for removal in await self._remove_state_deleted_in_kafka(deleted):
                yield removal
        by_group: defaultdict[str, list[AbandonedState]] = defaultdict(list)
        for each in due:
            if each.reason in (AbandonmentReason.GROUP_EMPTY, AbandonmentReason.TOPIC_UNSUBSCRIBED):
                by_group[each.group_id].append(each)
        groups = sorted(by_group, key=lambda group: group in self._deferred_groups)[:GROUPS_MAX]
        self._deferred_groups &= by_group.keys()
        for group in groups:
            removals = await self._remove_state_through_kafka(group, by_group[group])
            if any(removal.refused for removal in removals):
                self._deferred_groups.add(group)
            for removal in removals:
                yield removal
            if any(removal.unanswered for removal in removals):
                # End the round: the request timed out, and further requests probably would as well.
                break
        await self._delete_emptied_groups()

    # Deletion through Kafka.

    async def _remove_state_through_kafka(
        self, group: str, due: Sequence[AbandonedState]
    ) -> list[RemovalResult]:
        """Delete topics of a group through Kafka, which refuses if the group is not empty."""
        owned = [each for each in due if self._is_still_owned(each)]
        if not owned:
            return []
        states = {each: self._read_local_states(each) for each in owned}
        # The observation may be minutes old, so check that no member has joined since.
        described = (await self._groups.describe_groups([group]))[group]
        if described.error_code != ErrorCode.NONE:
            return [_make_refusal(each, described.error_code, described.error_message) for each in owned]
        still = [each for each in owned if _is_still_unused(each, described, states[each])]
        removals = [RemovalResult(each, 0, _USED) for each in owned if each not in still]
        if not still:
            return removals
        offsets = await self._list_offsets(group)
        outcomes = await self._groups.delete_offsets(group, [str(each.topic) for each in still])
        for each in still:
            outcome = outcomes[str(each.topic)]
            if outcome.error_code == ErrorCode.NONE:
                count = sum(offset.topic_id == each.topic_id for offset in offsets)
                removals.append(RemovalResult(each, count or len(each.partitions)))
                self._emptied_groups.add(group)
            elif outcome.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                # Kafka has no offsets of that topic, so the local state is left over.
                removal = await self._delete_unchanged_states(each, states[each])
                removals.append(removal)
                if not removal.refused:
                    self._emptied_groups.add(group)
            else:
                removals.append(_make_refusal(each, outcome.error_code, outcome.error_message))
        return removals

    async def _list_offsets(self, group: str) -> list[GroupOffset]:
        """Return the group's offsets in Kafka, which are only counted; [] if Kafka does not answer."""
        try:
            return await self._groups.list_offsets([group])
        except LogError:
            return []

    async def _delete_emptied_groups(self) -> None:
        """Delete empty groups without any state, as Kafka does with consumer groups.

        Deleting a group deletes all its state, also for topics that this client may not describe.
        Therefore, only groups without local state are deleted, and only if this coordinator owns all shards.
        """
        if len(self._runtime.owned_shards()) < self._runtime.state_partitions:
            self._emptied_groups.clear()
        if not self._emptied_groups or any(
            view.status != ShardStatus.ACTIVE for view in self._runtime.shard_views()
        ):
            return
        left = {key.group_id async for key, _ in self._runtime.share_partitions()}
        emptied = sorted(self._emptied_groups - left)[:GROUPS_MAX]
        if not emptied:
            return
        described = await self._groups.describe_groups(emptied)
        empty = [group for group in emptied if described[group].is_empty]
        without_offsets = sorted(await self._groups.groups_without_offsets(empty)) if empty else []
        self._emptied_groups.difference_update(emptied)
        if not without_offsets:
            return
        for group, outcome in (await self._groups.delete_groups(without_offsets)).items():
            if outcome.error_code == ErrorCode.NONE:
                _logger.info("Deleted share group %s: it was empty and had no offsets left.", group)
            elif outcome.error_code not in (ErrorCode.NON_EMPTY_GROUP, ErrorCode.GROUP_ID_NOT_FOUND):
                self._emptied_groups.add(group)

    def _is_still_owned(self, each: AbandonedState) -> bool:
        shards = self._runtime.state_partitions
        keys = (SharePartitionKey(each.group_id, each.topic_id, partition) for partition in each.partitions)
        return self._has_fresh_lease() and any(
            self._runtime.owns(state_partition(key, shards)) for key in keys
        )

    # Local deletion.

    async def _remove_state_deleted_in_kafka(self, due: Sequence[AbandonedState]) -> list[RemovalResult]:
        chosen: dict[AbandonedState, Mapping[SharePartitionKey, ShareState]] = {}
        total = 0
        for each in due:
            if total and total + len(each.partitions) > SHARE_PARTITIONS_MAX:
                break
            total += len(each.partitions)
            chosen[each] = self._read_local_states(each)
        # The states were read before this query, so `_delete_unchanged_states` keeps state written later.
        missing = await self._find_still_missing(chosen)
        return [
            await self._delete_unchanged_states(each, states)
            if each in missing
            else RemovalResult(each, 0, "it exists in Kafka again")
            for each, states in chosen.items()
        ]

    async def _find_still_missing(self, due: Collection[AbandonedState]) -> set[AbandonedState]:
        topics = {each.topic_id for each in due if each.reason is AbandonmentReason.TOPIC_DELETED}
        groups = {each.group_id for each in due if each.reason is AbandonmentReason.GROUP_DELETED}
        missing_topics = (
            (await self._groups.resolve_topic_ids(sorted(topics))).missing if topics else frozenset()
        )
        described = await self._groups.describe_groups(groups) if groups else {}
        return {
            each
            for each in due
            if (each.reason is AbandonmentReason.TOPIC_DELETED and each.topic_id in missing_topics)
            or (
                each.reason is AbandonmentReason.GROUP_DELETED
                and described[each.group_id].error_code == ErrorCode.GROUP_ID_NOT_FOUND
            )
        }

    def _read_local_states(self, each: AbandonedState) -> dict[SharePartitionKey, ShareState]:
        keys = [SharePartitionKey(each.group_id, each.topic_id, partition) for partition in each.partitions]
        states = ((key, self._runtime.share_partition(key)) for key in keys)
        return {key: state for key, state in states if state is not None}

    async def _delete_unchanged_states(
        self, each: AbandonedState, states: Mapping[SharePartitionKey, ShareState]
    ) -> RemovalResult:
        def decide(
            shard: Shard, key: SharePartitionKey, unit: object, context: RequestContext
        ) -> CoordinatorResult:
            if shard.state(key) != states[key]:
                return CoordinatorResult((), _USED)
            return CoordinatorResult([StateRecord(key, None)], "")

        deletions = [AwaitableOperation(decide, key) for key in states]
        for deletion in deletions:
            self._runtime.submit(deletion)
        refusals = [answer or why for answer, why in [await deletion.outcome for deletion in deletions]]
        why = sorted(set(filter(None, refusals)))
        return RemovalResult(each, refusals.count(""), "; ".join(why), failed=bool(set(why) - {_USED}))


def _is_still_unused(
    each: AbandonedState, now: GroupDescription, states: Mapping[SharePartitionKey, ShareState]
) -> bool:
    """Return whether, since the observation, the group stayed empty and no state was initialised."""
    initialized_ms = max((state.create_timestamp for state in states.values()), default=0)
    return now.is_empty and now.group_epoch == each.group_epoch and initialized_ms <= each.initialized_ms


def _make_refusal(each: AbandonedState, error_code: int, message: str) -> RemovalResult:
    failed = error_code not in (ErrorCode.NON_EMPTY_GROUP, ErrorCode.GROUP_ID_NOT_FOUND)
    why = message or kafka_error(error_code)
    return RemovalResult(each, 0, why, failed, error_code in _COORDINATOR_UNAVAILABLE)


def topic_label(each: AbandonedState) -> str:
    """Return a label of a group's topic for log messages."""
    return f"group {each.group_id}, topic {each.topic or topic_id_text(each.topic_id)}"
