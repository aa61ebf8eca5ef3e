"""How abandoned state goes: by way of Kafka's group coordinator, or by us where it has nothing to say."""

import asyncio
import logging
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

from coordinator.errors import LogError
from coordinator.expiry.observer import GroupAdmin, TopicIds
from coordinator.expiry.rules import AbandonedState, Reason
from coordinator.kafka.cluster import (
    COORDINATOR_LOAD_IN_PROGRESS,
    COORDINATOR_NOT_AVAILABLE,
    NONE,
    NOT_COORDINATOR,
    UNKNOWN_TOPIC_OR_PARTITION,
)
from coordinator.kafka.share_group_types import (
    GROUP_ID_NOT_FOUND,
    NON_EMPTY_GROUP,
    GroupDescription,
    GroupOffset,
)
from coordinator.runtime import Operation, Runtime, Status
from coordinator.shard import CoordinatorResult, RequestContext, Shard, ShareState
from protocol.errors import ErrorCode
from protocol.routing import state_partition
from protocol.state_records import SharePartitionKey, StateRecord, topic_id_text

_logger = logging.getLogger(__name__)

# Of a round: requests to group coordinators, and share-partitions that we delete ourselves. What is left over
# goes in the next round.
GROUPS_MAX = 100
SHARE_PARTITIONS_MAX = 1_000

# A group's coordinator was looked for as long as that is of use.
_NOT_FOUND_NOW = (COORDINATOR_LOAD_IN_PROGRESS, COORDINATOR_NOT_AVAILABLE, NOT_COORDINATOR)

_USED = "it was used just now"


class Removal(NamedTuple):
    """What became of something that was due; an empty `refused` means that all of it went.

    `failed` is what should not happen, and `unanswered` that the group's coordinator could not be asked.
    """

    abandoned: AbandonedState
    share_partitions: int
    refused: str = ""
    failed: bool = False
    unanswered: bool = False


class _Deletion(Operation):
    """Deletes the state of one share-partition if it is still what was seen; tells why not, or nothing."""

    __slots__ = ("refused",)

    def __init__(self, key: SharePartitionKey, seen: ShareState, now_s: float) -> None:
        def decide(
            shard: Shard, key: SharePartitionKey, unit: Sequence[Any], facts: RequestContext
        ) -> CoordinatorResult:
            if shard.state(key) != seen:
                return CoordinatorResult((), _USED)
            return CoordinatorResult([StateRecord(key, None)], "")

        super().__init__(decide, key, (), writes=True, origin=None, received_s=now_s)
        self.refused: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def answer(self, result: Any) -> None:
        if not self.refused.done():
            self.refused.set_result(result)

    def refuse(self, error_code: ErrorCode, error_message: str) -> None:
        if not self.refused.done():
            self.refused.set_result(error_message or error_code.name)


class Remover:
    """Removes what is due. Each method raises LogError where the cluster cannot be asked."""

    def __init__(
        self, runtime: Runtime, groups: GroupAdmin, topics: TopicIds, may_act: Callable[[], bool]
    ) -> None:
        self._runtime = runtime
        self._groups = groups
        self._topics = topics
        self._may_act = may_act
        # Groups of which the last offsets were deleted.
        self._emptied_groups: set[str] = set()
        # Groups that Kafka did not delete from when it was asked last: others come before them.
        self._deferred_groups: set[str] = set()

    async def remove(self, due: Sequence[AbandonedState]) -> AsyncIterator[Removal]:
        """Remove as much as a round may; yield what became of each as it goes."""
        gone = [each for each in due if each.reason in (Reason.TOPIC_DELETED, Reason.GROUP_DELETED)]
        if gone:
            for removal in await self._remove_gone(gone):
                yield removal
        by_group: defaultdict[str, list[AbandonedState]] = defaultdict(list)
        for each in due:
            if each.reason in (Reason.GROUP_EMPTY, Reason.TOPIC_UNSUBSCRIBED):
                by_group[each.group_id].append(each)
        groups = sorted(by_group, key=lambda group: group in self._deferred_groups)[:GROUPS_MAX]
        self._deferred_groups &= by_group.keys()
        for group in groups:
            removals = await self._remove_by_kafka(group, by_group[group])
            if any(removal.refused for removal in removals):
                self._deferred_groups.add(group)
            for removal in removals:
                yield removal
            if any(removal.unanswered for removal in removals):
                # It took its time to be found, and so would the next one.
                break
        await self._delete_emptied()

    # By way of Kafka.

    async def _remove_by_kafka(self, group: str, due: Sequence[AbandonedState]) -> list[Removal]:
        """Have Kafka delete topics of a group; it looks whether the group is empty, and says no if not."""
        owned = [each for each in due if self._still_owned(each)]
        if not owned:
            return []
        states = {each: self._states(each) for each in owned}
        # With others before it, the look may be minutes old: whoever came and went since then wants it.
        described = (await self._groups.describe_groups([group]))[group]
        if described.error_code != NONE:
            return [_refused(each, described.error_code, described.error_message) for each in owned]
        still = [each for each in owned if _is_unchanged(each, described, states[each])]
        removals = [Removal(each, 0, _USED) for each in owned if each not in still]
        if not still:
            return removals
        shown = await self._listed_offsets(group)
        outcomes = await self._groups.delete_offsets(group, [str(each.topic) for each in still])
        for each in still:
            outcome = outcomes[str(each.topic)]
            if outcome.error_code == NONE:
                count = sum(offset.topic_id == each.topic_id for offset in shown)
                removals.append(Removal(each, count or len(each.partitions)))
                self._emptied_groups.add(group)
            elif outcome.error_code == UNKNOWN_TOPIC_OR_PARTITION:
                # The group has nothing of that topic as far as Kafka knows: what is here was left behind.
                removal = await self._delete(each, states[each])
                removals.append(removal)
                if not removal.refused:
                    self._emptied_groups.add(group)
            else:
                removals.append(_refused(each, outcome.error_code, outcome.error_message))
        return removals

    async def _listed_offsets(self, group: str) -> list[GroupOffset]:
        """Return what Kafka knows of a group; nothing if it does not say: it is only counted."""
        try:
            return await self._groups.offsets([group])
        except LogError:
            return []

    async def _delete_emptied(self) -> None:
        """Delete groups that are empty and of which nothing is left, as Kafka does with consumer groups.

        With a group goes all its state, also of topics that Kafka does not show us: so none goes of which
        there is any here, and where others have shards, and may have some of it, none goes at all.
        """
        if len(self._runtime.owned_shards()) < self._runtime.state_partitions:
            self._emptied_groups.clear()
        if not self._emptied_groups or any(
            view.status != Status.ACTIVE for view in self._runtime.shard_views()
        ):
            return
        left = {key.group_id async for key, _ in self._runtime.share_partitions()}
        emptied = sorted(self._emptied_groups - left)[:GROUPS_MAX]
        if not emptied:
            return
        described = await self._groups.describe_groups(emptied)
        empty = [group for group in emptied if described[group].is_empty]
        bare = sorted(await self._groups.groups_without_offsets(empty)) if empty else []
        self._emptied_groups.difference_update(emptied)
        if not bare:
            return
        for group, outcome in (await self._groups.delete_groups(bare)).items():
            if outcome.error_code == NONE:
                _logger.info("share group %s expired: nothing was left of it", group)
            elif outcome.error_code not in (NON_EMPTY_GROUP, GROUP_ID_NOT_FOUND):
                self._emptied_groups.add(group)

    def _still_owned(self, each: AbandonedState) -> bool:
        """Tell whether what was seen of a topic is still ours to see to."""
        shards = self._runtime.state_partitions
        keys = (SharePartitionKey(each.group_id, each.topic_id, partition) for partition in each.partitions)
        return self._may_act() and any(self._runtime.owns(state_partition(key, shards)) for key in keys)

    # By ourselves.

    async def _remove_gone(self, due: Sequence[AbandonedState]) -> list[Removal]:
        """Delete state of topics and groups that Kafka does not have, if it says so once more."""
        chosen: dict[AbandonedState, Mapping[SharePartitionKey, ShareState]] = {}
        total = 0
        for each in due:
            if total and total + len(each.partitions) > SHARE_PARTITIONS_MAX:
                break
            total += len(each.partitions)
            chosen[each] = self._states(each)
        # The states first: one that comes to be after Kafka has answered is another one.
        missing = await self._confirm_missing(chosen)
        return [
            await self._delete(each, states) if each in missing else Removal(each, 0, "it is there again")
            for each, states in chosen.items()
        ]

    async def _confirm_missing(self, due: Collection[AbandonedState]) -> set[AbandonedState]:
        topics = {each.topic_id for each in due if each.reason is Reason.TOPIC_DELETED}
        groups = {each.group_id for each in due if each.reason is Reason.GROUP_DELETED}
        missing_topics = (await self._topics.resolve(sorted(topics))).missing if topics else frozenset()
        described = await self._groups.describe_groups(groups) if groups else {}
        return {
            each
            for each in due
            if (each.reason is Reason.TOPIC_DELETED and each.topic_id in missing_topics)
            or (
                each.reason is Reason.GROUP_DELETED
                and described[each.group_id].error_code == GROUP_ID_NOT_FOUND
            )
        }

    def _states(self, each: AbandonedState) -> dict[SharePartitionKey, ShareState]:
        keys = [SharePartitionKey(each.group_id, each.topic_id, partition) for partition in each.partitions]
        states = ((key, self._runtime.share_partition(key)) for key in keys)
        return {key: state for key, state in states if state is not None}

    async def _delete(self, each: AbandonedState, states: Mapping[SharePartitionKey, ShareState]) -> Removal:
        """Delete these states as far as they have not changed."""
        now_s = asyncio.get_running_loop().time()
        deletions = [_Deletion(key, state, now_s) for key, state in states.items()]
        for deletion in deletions:
            self._runtime.submit(deletion)
        refusals = await asyncio.gather(*(deletion.refused for deletion in deletions))
        why = sorted(set(filter(None, refusals)))
        return Removal(each, refusals.count(""), "; ".join(why), failed=bool(set(why) - {_USED}))


def _is_unchanged(
    each: AbandonedState, now: GroupDescription, states: Mapping[SharePartitionKey, ShareState]
) -> bool:
    """Tell whether nothing has happened to an empty group, or to what it has of a topic, since the look."""
    initialized_ms = max((state.create_timestamp for state in states.values()), default=0)
    return now.is_empty and now.group_epoch == each.group_epoch and initialized_ms <= each.initialized_ms


def _refused(each: AbandonedState, error_code: int, message: str) -> Removal:
    failed = error_code not in (NON_EMPTY_GROUP, GROUP_ID_NOT_FOUND)
    why = message or f"Kafka's error {error_code}"
    return Removal(each, 0, why, failed, error_code in _NOT_FOUND_NOW)


def topic_label(each: AbandonedState) -> str:
    """Name a topic of a group as people know it."""
    return f"group {each.group_id}, topic {each.topic or topic_id_text(each.topic_id)}"
