"""Decide which state is abandoned and when it expires.  Pure functions of the observations.

The rule follows KIP-211, which covers consumer groups.  The state of a group and topic expires when no member
has subscribed to the topic for the retention time. For an empty group, the retention time starts when the
group became empty. If Kafka no longer has the topic or the group, the state expires after a grace time.
"""

from collections.abc import Collection, Iterator, Mapping
from enum import StrEnum
from typing import NamedTuple

from coordinator.cluster.kafka.share_group_types import NO_GROUP_EPOCH
from coordinator.operate.expiry.observations import GroupObservation

_MINUTE_MS = 60_000


class AbandonmentReason(StrEnum):
    """Why state is abandoned."""

    GROUP_EMPTY = "group_empty"
    TOPIC_UNSUBSCRIBED = "topic_unsubscribed"
    TOPIC_DELETED = "topic_deleted"
    GROUP_DELETED = "group_deleted"


class ExpiryStatus(StrEnum):
    """Whether a round removes abandoned state now; only DUE state is removed."""

    # The state has not expired yet.
    LATER = "later"
    # The state has expired, but Kafka deletes offsets only of empty groups.
    WAITS_FOR_EMPTY_GROUP = "waits-for-empty-group"
    # Another coordinator removes the state: the owner of the shard of the topic's partition 0.
    ELSEWHERE = "elsewhere"
    # Kafka did not answer for the group or the topic in this observation.
    NOT_KNOWN = "not-known"
    DUE = "due"


class ExpiryRules(NamedTuple):
    """How long abandoned state is kept. Without a retention time, only state deleted in Kafka expires."""

    retention_minutes: int | None
    grace_minutes: int
    # Maximum time between two observations, in which a group may have been deleted and created again.
    gap_ms: int = 0
    # The time after which any owner removes expired state that the owner of partition 0 has not removed.
    leftover_ms: int = 3_600_000


class HeldState(NamedTuple):
    """The local state of one topic of one group.

    `initialized_ms` is when Kafka last initialised a part of the state or set its offsets. `leads` is True if
    this coordinator owns the shard of the topic's partition 0.
    """

    group_id: str
    topic_id: bytes
    partitions: tuple[int, ...]
    initialized_ms: int
    leads: bool


class ClusterView(NamedTuple):
    """The known groups by name and topics by id.

    `unanswered`: groups whose coordinators did not answer in the last observation. `missing`: topic ids
    that no broker knows, with the time of the first observation without the topic. `unclear`: topic ids that
    are neither found nor missing in the last observation.
    """

    groups: Mapping[str, GroupObservation]
    unanswered: Collection[str]
    names: Mapping[bytes, str]
    missing: Mapping[bytes, int]
    unclear: Collection[bytes]


class AbandonedState(NamedTuple):
    """A topic of a group whose state expires at `expires_ms` (None: never) unless the state is used.

    `since_ms` is the time of the last observed use. `initialized_ms` and `group_epoch` are values of the
    observation. If these values have changed at removal, the state was used since the observation and is
    kept.
    """

    group_id: str
    topic_id: bytes
    topic: str | None
    partitions: tuple[int, ...]
    reason: AbandonmentReason
    since_ms: int
    expires_ms: int | None
    status: ExpiryStatus
    initialized_ms: int
    group_epoch: int


def find_abandoned_state(
    held: Collection[HeldState], seen: ClusterView, rules: ExpiryRules, now_ms: int
) -> Iterator[AbandonedState]:
    """Yield the abandoned state. State that is used, or may be used, is not included."""
    for held_state in held:
        found = _find_deleted_in_kafka(held_state, seen, rules, now_ms) or _find_unsubscribed(
            held_state, seen, rules, now_ms
        )
        if found is not None:
            yield found


def _find_deleted_in_kafka(
    held_state: HeldState, seen: ClusterView, rules: ExpiryRules, now_ms: int
) -> AbandonedState | None:
    """Return the state as abandoned if Kafka has no such topic or group, else None.

    Each coordinator removes the partitions that it owns.
    """
    observation = seen.groups.get(held_state.group_id)
    is_confirmed = True
    if held_state.topic_id in seen.missing:
        reason, since_ms = AbandonmentReason.TOPIC_DELETED, seen.missing[held_state.topic_id]
        is_confirmed = held_state.topic_id not in seen.unclear
    elif observation is not None and observation.missing_ms is not None:
        reason, since_ms = AbandonmentReason.GROUP_DELETED, observation.missing_ms
        is_confirmed = held_state.group_id not in seen.unanswered
    else:
        return None
    since_ms = max(since_ms, held_state.initialized_ms)
    # Never expire at the first observation that misses the topic or the group.
    expires_ms = since_ms + max(rules.grace_minutes * _MINUTE_MS, 1)
    status = ExpiryStatus.LATER if now_ms < expires_ms else ExpiryStatus.DUE
    if status is ExpiryStatus.DUE and not is_confirmed:
        status = ExpiryStatus.NOT_KNOWN
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


def _find_unsubscribed(
    held_state: HeldState, seen: ClusterView, rules: ExpiryRules, now_ms: int
) -> AbandonedState | None:
    """Return the state as abandoned if its group is no longer subscribed to the topic, else None.

    The owner of partition 0 deletes all state of the topic through Kafka.
    """
    observation, topic = seen.groups.get(held_state.group_id), seen.names.get(held_state.topic_id)
    if observation is None or topic is None:
        return None
    unsubscribed_since_ms = observation.unsubscribed_since_ms(topic)
    if unsubscribed_since_ms is None:
        return None
    since_ms = unsubscribed_since_ms
    if held_state.initialized_ms >= unsubscribed_since_ms:
        # The state was initialised after the last observed subscription: offsets were set while the group was
        # not used, a member joined and left between two observations, or the group was created again.
        since_ms = held_state.initialized_ms + rules.gap_ms
    expires_ms = None
    status = ExpiryStatus.LATER
    if rules.retention_minutes is not None:
        expires_ms = since_ms + rules.retention_minutes * _MINUTE_MS
        if now_ms >= expires_ms:
            status = _find_unsubscribed_status(
                held_state, seen, observation, now_ms >= expires_ms + rules.leftover_ms
            )
    return AbandonedState(
        held_state.group_id,
        held_state.topic_id,
        topic,
        held_state.partitions,
        AbandonmentReason.GROUP_EMPTY if observation.is_empty else AbandonmentReason.TOPIC_UNSUBSCRIBED,
        since_ms,
        expires_ms,
        status,
        held_state.initialized_ms,
        observation.group_epoch,
    )


def _find_unsubscribed_status(
    held_state: HeldState, seen: ClusterView, observation: GroupObservation, is_left_over: bool
) -> ExpiryStatus:
    if held_state.group_id in seen.unanswered or held_state.topic_id in seen.unclear:
        return ExpiryStatus.NOT_KNOWN
    if not observation.is_empty:
        return ExpiryStatus.WAITS_FOR_EMPTY_GROUP
    if not (held_state.leads or is_left_over):
        return ExpiryStatus.ELSEWHERE
    return ExpiryStatus.DUE
