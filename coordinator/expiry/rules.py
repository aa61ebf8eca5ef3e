"""What state is abandoned, and when it goes: facts in, decisions out.  Pure.

The rule (after KIP-211, which is about consumer groups): what a group has of a topic expires when no member
of the group has subscribed to that topic for the retention time.  Of an empty group that is every topic, from
when it became empty on.  What belongs to a topic or a group that Kafka does not have any more goes after a
grace time.
"""

from collections.abc import Collection, Iterator, Mapping
from enum import StrEnum
from typing import NamedTuple

from coordinator.expiry.observations import GroupObservation
from coordinator.kafka.share_group_types import NO_GROUP_EPOCH

_MINUTE_MS = 60_000


class Reason(StrEnum):
    """Why state is abandoned."""

    GROUP_EMPTY = "group_empty"
    TOPIC_UNSUBSCRIBED = "topic_unsubscribed"
    TOPIC_DELETED = "topic_deleted"
    GROUP_DELETED = "group_deleted"


class Status(StrEnum):
    """What a round does about it: nothing, but for what is due."""

    # Its time has not come.
    LATER = "later"
    # Its time has come, and Kafka deletes nothing of a group that has members.
    WAITS_FOR_EMPTY_GROUP = "waits-for-empty-group"
    # The owner of the shard of the topic's first partition sees to it, and that is not us.
    ELSEWHERE = "elsewhere"
    # Nothing was heard of the group or the topic in this look.
    NOT_KNOWN = "not-known"
    DUE = "due"


class Rules(NamedTuple):
    """How long abandoned state is kept. Without a retention time only what Kafka does not have goes."""

    retention_minutes: int | None
    grace_minutes: int
    # The longest time between two looks that counts as watching all the time.
    gap_ms: int = 0
    # What its first owner has not seen to by so long after its time, any owner of a part does.
    leftover_ms: int = 3_600_000


class HeldState(NamedTuple):
    """What is here of one topic for one group.

    `initialized_ms` is when Kafka last initialised any of it, or set its offsets. `leads` tells whether the
    shard of the topic's partition 0 is ours.
    """

    group_id: str
    topic_id: bytes
    partitions: tuple[int, ...]
    initialized_ms: int
    leads: bool


class ClusterView(NamedTuple):
    """What is known of the cluster: groups by name, topics by id.

    `heard` has the groups whose coordinators answered in the last look. `missing` has topic ids that no
    broker knew, since when; `unclear` those that the last look told nothing of.
    """

    groups: Mapping[str, GroupObservation]
    heard: Collection[str]
    names: Mapping[bytes, str]
    missing: Mapping[bytes, int]
    unclear: Collection[bytes]


class AbandonedState(NamedTuple):
    """A topic of a group that goes at `expires_ms`, if nothing happens until then; None: never, by the rules.

    `since_ms` is when its clock began: as far as was seen, nobody has wanted it since. `initialized_ms` and
    `group_epoch` are as in the look that found it so; where another is found when it goes, it is wanted.
    """

    group_id: str
    topic_id: bytes
    topic: str | None
    partitions: tuple[int, ...]
    reason: Reason
    since_ms: int
    expires_ms: int | None
    status: Status
    initialized_ms: int
    group_epoch: int


def find_abandoned_state(
    held: Collection[HeldState], seen: ClusterView, rules: Rules, now_ms: int
) -> Iterator[AbandonedState]:
    """Yield what nobody wants any more; what is wanted, or not known to be unwanted, is left out."""
    for held_state in held:
        found = _for_deleted_in_kafka(held_state, seen, rules, now_ms) or _for_unsubscribed(
            held_state, seen, rules, now_ms
        )
        if found is not None:
            yield found


def _for_deleted_in_kafka(
    held_state: HeldState, seen: ClusterView, rules: Rules, now_ms: int
) -> AbandonedState | None:
    """Decide about a topic or a group that Kafka does not have: each owner of a part for itself."""
    observation = seen.groups.get(held_state.group_id)
    heard = True
    if held_state.topic_id in seen.missing:
        reason, since_ms = Reason.TOPIC_DELETED, seen.missing[held_state.topic_id]
        heard = held_state.topic_id not in seen.unclear
    elif observation is not None and observation.missing_ms is not None:
        reason, since_ms = Reason.GROUP_DELETED, observation.missing_ms
        heard = held_state.group_id in seen.heard
    else:
        return None
    since_ms = max(since_ms, held_state.initialized_ms)
    # Never at the look that misses it first.
    expires_ms = since_ms + max(rules.grace_minutes * _MINUTE_MS, 1)
    status = Status.LATER if now_ms < expires_ms else Status.DUE
    if status is Status.DUE and not heard:
        status = Status.NOT_KNOWN
    return AbandonedState(
        held_state.group_id,
        held_state.topic_id,
        seen.names.get(held_state.topic_id),
        held_state.partitions,
        reason,
        since_ms,
        expires_ms,
        status,
        held_state.initialized_ms,
        NO_GROUP_EPOCH if observation is None else observation.group_epoch,
    )


def _for_unsubscribed(
    held_state: HeldState, seen: ClusterView, rules: Rules, now_ms: int
) -> AbandonedState | None:
    """Decide about a topic that Kafka has: the owner of its first partition has Kafka delete all of it."""
    observation, topic = seen.groups.get(held_state.group_id), seen.names.get(held_state.topic_id)
    if observation is None or topic is None:
        return None
    unsubscribed_since_ms = observation.unsubscribed_since_ms(topic)
    if unsubscribed_since_ms is None:
        return None
    since_ms = unsubscribed_since_ms
    if held_state.initialized_ms >= unsubscribed_since_ms:
        # And nothing was seen of it: somebody set the offsets of a group that has yet to come, or came and
        # went between two looks, maybe to another group of that name with the same group epoch by chance.
        since_ms = held_state.initialized_ms + rules.gap_ms
    expires_ms = None
    status = Status.LATER
    if rules.retention_minutes is not None:
        expires_ms = since_ms + rules.retention_minutes * _MINUTE_MS
        if now_ms >= expires_ms:
            status = _unsubscribed_status(
                held_state, seen, observation, now_ms >= expires_ms + rules.leftover_ms
            )
    return AbandonedState(
        held_state.group_id,
        held_state.topic_id,
        topic,
        held_state.partitions,
        Reason.GROUP_EMPTY if observation.is_empty else Reason.TOPIC_UNSUBSCRIBED,
        since_ms,
        expires_ms,
        status,
        held_state.initialized_ms,
        observation.group_epoch,
    )


def _unsubscribed_status(
    held_state: HeldState, seen: ClusterView, observation: GroupObservation, is_left_over: bool
) -> Status:
    if held_state.group_id not in seen.heard or held_state.topic_id in seen.unclear:
        return Status.NOT_KNOWN
    if not observation.is_empty:
        return Status.WAITS_FOR_EMPTY_GROUP
    if not (held_state.leads or is_left_over):
        return Status.ELSEWHERE
    return Status.DUE
