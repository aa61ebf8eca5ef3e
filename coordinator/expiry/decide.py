"""What state is abandoned, and when it goes: facts in, decisions out.  Pure.

The rule (after KIP-211, which is about consumer groups): what a group has of a topic expires when no member
of the group has subscribed to that topic for the retention time.  Of an empty group that is every topic, from
when it became empty on.  What belongs to a topic or a group that Kafka does not have any more goes after a
grace time.
"""

from collections.abc import Collection, Iterator, Mapping
from enum import StrEnum
from typing import NamedTuple

from coordinator.expiry.watch import Watch
from coordinator.kafka.group_facts import NO_GROUP_EPOCH

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


class Held(NamedTuple):
    """What is here of one topic for one group.

    `initialized_ms` is when Kafka last initialised any of it, or set its offsets. `leads` tells whether the
    shard of the topic's partition 0 is ours.
    """

    group_id: str
    topic_id: bytes
    partitions: tuple[int, ...]
    initialized_ms: int
    leads: bool


class Seen(NamedTuple):
    """What is known of the cluster: groups by name, topics by id.

    `heard` has the groups whose coordinators answered in the last look. `missing` has topic ids that no
    broker knew, since when; `unclear` those that the last look told nothing of.
    """

    groups: Mapping[str, Watch]
    heard: Collection[str]
    names: Mapping[bytes, str]
    missing: Mapping[bytes, int]
    unclear: Collection[bytes]


class Abandoned(NamedTuple):
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


def abandoned(held: Collection[Held], seen: Seen, rules: Rules, now_ms: int) -> Iterator[Abandoned]:
    """Yield what nobody wants any more; what is wanted, or not known to be unwanted, is left out."""
    for part in held:
        found = _gone(part, seen, rules, now_ms) or _unwanted(part, seen, rules, now_ms)
        if found is not None:
            yield found


def _gone(part: Held, seen: Seen, rules: Rules, now_ms: int) -> Abandoned | None:
    """Decide about a topic or a group that Kafka does not have: each owner of a part for itself."""
    watch = seen.groups.get(part.group_id)
    heard = True
    if part.topic_id in seen.missing:
        reason, since_ms = Reason.TOPIC_DELETED, seen.missing[part.topic_id]
        heard = part.topic_id not in seen.unclear
    elif watch is not None and watch.missing_ms is not None:
        reason, since_ms = Reason.GROUP_DELETED, watch.missing_ms
        heard = part.group_id in seen.heard
    else:
        return None
    since_ms = max(since_ms, part.initialized_ms)
    # Never at the look that misses it first.
    expires_ms = since_ms + max(rules.grace_minutes * _MINUTE_MS, 1)
    status = Status.LATER if now_ms < expires_ms else Status.DUE
    if status is Status.DUE and not heard:
        status = Status.NOT_KNOWN
    return Abandoned(
        part.group_id,
        part.topic_id,
        seen.names.get(part.topic_id),
        part.partitions,
        reason,
        since_ms,
        expires_ms,
        status,
        part.initialized_ms,
        NO_GROUP_EPOCH if watch is None else watch.group_epoch,
    )


def _unwanted(part: Held, seen: Seen, rules: Rules, now_ms: int) -> Abandoned | None:
    """Decide about a topic that Kafka has: the owner of its first partition has Kafka delete all of it."""
    watch, topic = seen.groups.get(part.group_id), seen.names.get(part.topic_id)
    if watch is None or topic is None:
        return None
    unwanted_ms = watch.unwanted_ms(topic)
    if unwanted_ms is None:
        return None
    since_ms = unwanted_ms
    if part.initialized_ms >= unwanted_ms:
        # And nothing was seen of it: somebody set the offsets of a group that has yet to come, or came and
        # went between two looks, maybe to another group of that name with the same group epoch by chance.
        since_ms = part.initialized_ms + rules.gap_ms
    expires_ms = None
    status = Status.LATER
    if rules.retention_minutes is not None:
        expires_ms = since_ms + rules.retention_minutes * _MINUTE_MS
        if now_ms >= expires_ms:
            status = _status_of_unwanted(part, seen, watch, now_ms >= expires_ms + rules.leftover_ms)
    return Abandoned(
        part.group_id,
        part.topic_id,
        topic,
        part.partitions,
        Reason.GROUP_EMPTY if watch.is_empty else Reason.TOPIC_UNSUBSCRIBED,
        since_ms,
        expires_ms,
        status,
        part.initialized_ms,
        watch.group_epoch,
    )


def _status_of_unwanted(part: Held, seen: Seen, watch: Watch, is_left_over: bool) -> Status:
    if part.group_id not in seen.heard or part.topic_id in seen.unclear:
        return Status.NOT_KNOWN
    if not watch.is_empty:
        return Status.WAITS_FOR_EMPTY_GROUP
    if not (part.leads or is_left_over):
        return Status.ELSEWHERE
    return Status.DUE
