"""Track since when no member of a share group has been subscribed to a topic. Pure: no I/O, no clock.

A group is observed every few minutes. The group epoch shows whether the group changed in between. The group
coordinator increments and persists the group epoch when a member joins, leaves or changes its subscription.
If two observations have the same epoch, the group did not change, even if the coordinator restarted in
between.
"""

from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from coordinator.cluster.kafka.share_group_types import NO_GROUP_EPOCH, GroupDescription
from protocol.errors import ErrorCode

# The largest difference between the clocks of two coordinators.
_CLOCK_SKEW_MAX_MS = 60_000

# Maximum number of topics of a group whose unsubscription times are stored separately.
_LEFT_MAX = 1_000


class ObservationGaps(NamedTuple):
    """The maximum time between two observations of a group, for a changed and for an unchanged group epoch.

    If the observations are further apart, the history of the group starts again.
    """

    changed_ms: int
    unchanged_ms: int


class GroupObservation(msgspec.Struct, frozen=True, kw_only=True, rename={"read_ms": "looked_ms"}):
    """The state of one group at the last observation. Times are milliseconds since 1970.

    `left_ms` maps each topic that was unsubscribed to the time of the first observation without it.  All
    other topics have had no subscription since `since_ms`.  `missing_ms` is the time of the first observation
    at which Kafka no longer had the group.
    """

    read_ms: int
    since_ms: int
    group_epoch: int = NO_GROUP_EPOCH
    subscribed: frozenset[str] = frozenset()
    left_ms: Mapping[str, int] = {}
    is_empty: bool = False
    missing_ms: int | None = None

    def unsubscribed_since_ms(self, topic: str) -> int | None:
        """Return when a topic lost its last subscriber.

        The result is None if the topic has a subscriber or the group is missing.
        """
        if self.missing_ms is not None or topic in self.subscribed:
            return None
        return self.left_ms.get(topic, self.since_ms)


def observe_group(
    before: GroupObservation | None,
    seen: GroupDescription,
    *,
    now_ms: int,
    gaps: ObservationGaps,
    initialized_ms: int | None,
) -> GroupObservation | None:
    """Return the new observation of a group, or `before` if the group's coordinator did not answer.

    `initialized_ms` is when Kafka last initialised local state of the group, None if there is none.
    """
    if before is not None:
        # If the clock was set back, observations must not seem older after the clock is corrected.
        now_ms = max(now_ms, before.read_ms)
    if seen.error_code == ErrorCode.GROUP_ID_NOT_FOUND:
        missing_ms = before.missing_ms if before is not None else None
        return GroupObservation(
            read_ms=now_ms, since_ms=now_ms, missing_ms=now_ms if missing_ms is None else missing_ms
        )
    if seen.error_code != ErrorCode.NONE:
        return before
    if before is None or before.missing_ms is not None:
        return _make_first_observation(seen, now_ms)
    passed_ms = now_ms - before.read_ms
    if seen.group_epoch == before.group_epoch:
        if passed_ms > gaps.unchanged_ms and not _is_same_group(before, initialized_ms):
            return _make_first_observation(seen, now_ms)
        return msgspec.structs.replace(before, read_ms=now_ms)
    if before.is_empty and seen.is_empty:
        # A member joined and left in between, and its subscription is unknown.
        return _make_first_observation(seen, now_ms)
    if passed_ms > gaps.changed_ms:
        return _make_first_observation(seen, now_ms)
    return _continue_observation(before, seen, now_ms)


def _is_same_group(before: GroupObservation, initialized_ms: int | None) -> bool:
    """Return whether the group is the observed group, and not a new group with the same name and epoch.

    Kafka deletes all state of a deleted group, so the state of a new group has a later initialisation time.
    """
    return initialized_ms is not None and initialized_ms + _CLOCK_SKEW_MAX_MS < before.read_ms


def _make_first_observation(seen: GroupDescription, now_ms: int) -> GroupObservation:
    return GroupObservation(
        read_ms=now_ms,
        since_ms=now_ms,
        group_epoch=seen.group_epoch,
        subscribed=seen.subscribed,
        is_empty=seen.is_empty,
    )


def _continue_observation(before: GroupObservation, seen: GroupDescription, now_ms: int) -> GroupObservation:
    left = {topic: left_ms for topic, left_ms in before.left_ms.items() if topic not in seen.subscribed}
    left |= dict.fromkeys(before.subscribed - seen.subscribed, now_ms)
    since_ms = before.since_ms
    if len(left) > _LEFT_MAX:
        since_ms, left = max(left.values()), {}
    return GroupObservation(
        read_ms=now_ms,
        since_ms=since_ms,
        group_epoch=seen.group_epoch,
        subscribed=seen.subscribed,
        left_ms=left,
        is_empty=seen.is_empty,
    )
