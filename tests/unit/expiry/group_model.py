"""A model of a share group with time in minutes, and an observer that describes the group at intervals.

The model is the reference for expiry decisions. The model records the time of each subscription; the observer
can only infer these times.
"""

import msgspec

from coordinator.cluster.kafka.share_group_types import EMPTY, GroupDescription
from coordinator.operate.expiry.observations import GroupObservation, ObservationGaps, observe_group
from coordinator.operate.expiry.rules import (
    AbandonedState,
    ClusterView,
    ExpiryRules,
    HeldState,
    find_abandoned_state,
)
from protocol.errors import ErrorCode

MINUTE_MS = 60_000
GAP_MINUTES = 30
UNCHANGED_GAP_MINUTES = 60
TOPICS = ("a", "b", "c")
GROUP = "group"


def topic_id(topic: str) -> bytes:
    return topic.encode() * 16


class GroupModel:
    """A share group with time in minutes. A topic that was subscribed to has state until the group is
    deleted.
    """

    def __init__(self, rules: ExpiryRules) -> None:
        self.rules = rules
        self.minute = 1_000_000
        self.members: list[frozenset[str]] = []
        self.group_epoch = 0
        self.exists = True
        self.initialized: dict[str, int] = {}
        # Subscriptions as (topic, start, end). The end is None while the subscription lasts.
        self.subscriptions: list[tuple[str, int, int | None]] = []
        # Times of observations that found the group, and whether the group was empty.
        self.observations: list[tuple[int, bool]] = []
        self.watch: GroupObservation | None = None

    @property
    def subscribed_topics(self) -> frozenset[str]:
        return frozenset().union(*self.members)

    # Changes of the group.

    def advance_time(self, minutes: int) -> None:
        self.minute += minutes

    def join(self, topics: frozenset[str]) -> None:
        if not self.exists:
            self.exists, self.group_epoch = True, 0
        self._change_members([*self.members, topics])

    def leave(self, number: int = 0) -> None:
        if self.members:
            number %= len(self.members)
            self._change_members(self.members[:number] + self.members[number + 1 :])

    def leave_all(self) -> None:
        while self.members:
            self.leave()

    def join_and_leave(self, topics: frozenset[str], minutes: int) -> None:
        """Join the group for `minutes`, and leave."""
        self.join(topics)
        self.advance_time(minutes)
        self.leave(len(self.members) - 1)

    def delete_group(self) -> None:
        """Delete the group and its state, if the group is empty."""
        if not self.members:
            self.exists = False
            self.initialized.clear()

    def _change_members(self, members: list[frozenset[str]]) -> None:
        before = self.subscribed_topics
        self.members = members
        self.group_epoch += 1
        self.subscriptions = [
            (topic, start, self.minute if end is None and topic not in self.subscribed_topics else end)
            for topic, start, end in self.subscriptions
        ]
        for topic in self.subscribed_topics - before:
            self.subscriptions.append((topic, self.minute, None))
            self.initialized.setdefault(topic, self.minute)

    # Observations.

    def restart(self, *, keeps_file: bool) -> None:
        """Restart the observer, with or without the observation that is stored in its file."""
        if not keeps_file:
            self.watch = None
        elif self.watch is not None:
            self.watch = msgspec.json.decode(msgspec.json.encode(self.watch), type=GroupObservation)

    def observe(self, *, answers: bool = True) -> list[AbandonedState]:
        if not answers:
            seen = GroupDescription(14)
        elif not self.exists:
            seen = GroupDescription(ErrorCode.GROUP_ID_NOT_FOUND)
        else:
            state = "Stable" if self.members else EMPTY
            seen = GroupDescription(0, "", state, self.group_epoch, len(self.members), self.subscribed_topics)
            self.observations.append((self.minute, not self.members))
        now_ms = self.minute * MINUTE_MS
        self.watch = observe_group(
            self.watch,
            seen,
            now_ms=now_ms,
            gaps=ObservationGaps(GAP_MINUTES * MINUTE_MS, UNCHANGED_GAP_MINUTES * MINUTE_MS),
            initialized_ms=max((minute * MINUTE_MS for minute in self.initialized.values()), default=None),
        )
        held = [
            HeldState(GROUP, topic_id(topic), (0,), minute * MINUTE_MS, True)
            for topic, minute in self.initialized.items()
        ]
        cluster = ClusterView(
            {} if self.watch is None else {GROUP: self.watch},
            set() if answers else {GROUP},
            {topic_id(topic): topic for topic in TOPICS},
            {},
            (),
        )
        return list(find_abandoned_state(held, cluster, self.rules, now_ms))

    # The expected result.

    def unsubscribed_minutes(self, topic: str) -> int:
        """Return the minutes since the last subscription to a topic that the observer could detect."""
        ends = [
            self.minute if end is None else end
            for subscribed, start, end in self.subscriptions
            if subscribed == topic and not (end is not None and self._may_miss_subscription(start, end))
        ]
        return self.minute - max(ends, default=0)

    def _may_miss_subscription(self, start: int, end: int) -> bool:
        """Return whether the observer may miss a subscription because it lies between two observations.

        If the group was empty at both observations, its group epoch reveals the subscription: return False.
        """
        for (before, was_empty), (after, is_empty) in zip(
            self.observations, self.observations[1:], strict=False
        ):
            if before <= start and end <= after and after - before <= GAP_MINUTES:
                return not (was_empty and is_empty)
        return False
