"""What was seen of one share group over time, and since when nobody has wanted which topic.  Pure.

A group is looked at every few minutes.  What happens in between is told by its group epoch, which its
coordinator keeps in Kafka and raises whenever a member comes, goes or changes its subscription: with the same
epoch at two looks nothing happened to it, however long the time between them, our own restarts included.
"""

from collections.abc import Mapping

import msgspec

from coordinator.kafka.cluster import NONE
from coordinator.kafka.share_group_types import GROUP_ID_NOT_FOUND, NO_GROUP_EPOCH, GroupDescription

# How far the clocks of two coordinators may be apart.
_CLOCK_SKEW_MAX_MS = 60_000

# Topics of one group whose leaving is remembered one by one.
_LEFT_MAX = 1_000


class GroupObservation(msgspec.Struct, frozen=True, kw_only=True, rename={"read_ms": "looked_ms"}):
    """One group as of the last look at it. Times are milliseconds since 1970.

    `left_ms` has topics that were subscribed to at one look and not at the next, with the time of the latter.
    Any other topic that is not subscribed to has not been since `since_ms`, as far as was seen.  `missing_ms`
    is the first look, of all since the last that found it, at which Kafka had no such group.
    """

    read_ms: int
    since_ms: int
    group_epoch: int = NO_GROUP_EPOCH
    subscribed: frozenset[str] = frozenset()
    left_ms: Mapping[str, int] = {}
    is_empty: bool = False
    missing_ms: int | None = None

    def unsubscribed_since_ms(self, topic: str) -> int | None:
        """Return since when no member subscribes to a topic; None if one does, or there is no such group."""
        if self.missing_ms is not None or topic in self.subscribed:
            return None
        return self.left_ms.get(topic, self.since_ms)


def observe_group(
    before: GroupObservation | None,
    seen: GroupDescription,
    *,
    now_ms: int,
    gap_max_ms: int,
    initialized_ms: int | None,
) -> GroupObservation | None:
    """Return the watch after a look; what was known before if the group could not be asked about.

    `gap_max_ms` is the longest time between two looks that counts as watching all the time: a topic of a
    group whose members change is taken for unsubscribed in between only then.  `initialized_ms` is when
    Kafka last initialised any state of the group that is here, None without any.  Wherever it is not known
    what happened, time begins anew.
    """
    if before is not None:
        # A clock that was turned back must not make anything look old when it is right again.
        now_ms = max(now_ms, before.read_ms)
    if seen.error_code == GROUP_ID_NOT_FOUND:
        missing_ms = before.missing_ms if before is not None else None
        return GroupObservation(
            read_ms=now_ms, since_ms=now_ms, missing_ms=now_ms if missing_ms is None else missing_ms
        )
    if seen.error_code != NONE:
        return before
    if before is None or before.missing_ms is not None:
        return _first_observation(seen, now_ms)
    is_gap = now_ms - before.read_ms > gap_max_ms
    if seen.group_epoch == before.group_epoch:
        if is_gap and not _is_same_group(before, initialized_ms):
            return _first_observation(seen, now_ms)
        return msgspec.structs.replace(before, read_ms=now_ms)
    if before.is_empty and seen.is_empty:
        # Somebody came and went, and who knows what they subscribed to.
        return _first_observation(seen, now_ms)
    if is_gap:
        return _first_observation(seen, now_ms)
    return _continued(before, seen, now_ms)


def _is_same_group(before: GroupObservation, initialized_ms: int | None) -> bool:
    """Tell whether a group is not another one with the same name, which may come to the same group epoch.

    With a group Kafka deletes all its state: what is left was initialised after that.
    """
    return initialized_ms is not None and initialized_ms + _CLOCK_SKEW_MAX_MS < before.read_ms


def _first_observation(seen: GroupDescription, now_ms: int) -> GroupObservation:
    return GroupObservation(
        read_ms=now_ms,
        since_ms=now_ms,
        group_epoch=seen.group_epoch,
        subscribed=seen.subscribed,
        is_empty=seen.is_empty,
    )


def _continued(before: GroupObservation, seen: GroupDescription, now_ms: int) -> GroupObservation:
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
