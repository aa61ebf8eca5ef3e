"""A share group as it really is, minute by minute, and a watch that looks at it now and then.

The model that decisions are held against: it knows when which topic was subscribed to, which the watch can
only infer from its looks.
"""

import msgspec

from coordinator.expiry.observations import GroupObservation, observe_group
from coordinator.expiry.rules import AbandonedState, ClusterView, HeldState, Rules, find_abandoned_state
from coordinator.kafka.share_group_types import EMPTY, GroupDescription
from protocol.errors import ErrorCode

MINUTE_MS = 60_000
GAP_MINUTES = 30
TOPICS = ("a", "b", "c")
GROUP = "group"


def topic_id(topic: str) -> bytes:
    return topic.encode() * 16


class World:
    """Time is in minutes. Topics that have been subscribed to have state until the group is deleted."""

    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        self.minute = 1_000_000
        self.members: list[frozenset[str]] = []
        self.group_epoch = 0
        self.exists = True
        self.initialized: dict[str, int] = {}
        # Times at which a topic was subscribed to, with their ends; no end: still.
        self.spells: list[tuple[str, int, int | None]] = []
        # Times of looks that found the group, and whether it was empty.
        self.looks: list[tuple[int, bool]] = []
        self.watch: GroupObservation | None = None
        # Since when the watch knows the group without interruption, and its epoch has stayed.
        self.quiet_since: int | None = None

    @property
    def subscribed(self) -> frozenset[str]:
        return frozenset().union(*self.members)

    # What happens.

    def pass_time(self, minutes: int) -> None:
        self.minute += minutes

    def join(self, topics: frozenset[str]) -> None:
        if not self.exists:
            self.exists, self.group_epoch = True, 0
        self._change([*self.members, topics])

    def leave(self, number: int = 0) -> None:
        if self.members:
            number %= len(self.members)
            self._change(self.members[:number] + self.members[number + 1 :])

    def leave_all(self) -> None:
        while self.members:
            self.leave()

    def visit(self, topics: frozenset[str], minutes: int) -> None:
        """Be a member for some minutes."""
        self.join(topics)
        self.pass_time(minutes)
        self.leave(len(self.members) - 1)

    def delete_group(self) -> None:
        """Delete the group if it is empty, with all that it has."""
        if not self.members:
            self.exists = False
            self.initialized.clear()
            self.quiet_since = None

    def _change(self, members: list[frozenset[str]]) -> None:
        before = self.subscribed
        self.members = members
        self.group_epoch += 1
        self.quiet_since = None
        self.spells = [
            (topic, start, self.minute if end is None and topic not in self.subscribed else end)
            for topic, start, end in self.spells
        ]
        for topic in self.subscribed - before:
            self.spells.append((topic, self.minute, None))
            self.initialized.setdefault(topic, self.minute)

    # What is seen.

    def restart(self, *, keeps_file: bool) -> None:
        """Begin with what is in the file, or without."""
        if not keeps_file:
            self.watch, self.quiet_since = None, None
        elif self.watch is not None:
            self.watch = msgspec.json.decode(msgspec.json.encode(self.watch), type=GroupObservation)

    def look(self, *, answers: bool = True) -> list[AbandonedState]:
        """Look, and decide."""
        if not answers:
            seen = GroupDescription(14)
        elif not self.exists:
            seen = GroupDescription(ErrorCode.GROUP_ID_NOT_FOUND)
        else:
            state = "Stable" if self.members else EMPTY
            seen = GroupDescription(0, "", state, self.group_epoch, len(self.members), self.subscribed)
            self.looks.append((self.minute, not self.members))
            if self.quiet_since is None:
                self.quiet_since = self.minute
        now_ms = self.minute * MINUTE_MS
        self.watch = observe_group(
            self.watch,
            seen,
            now_ms=now_ms,
            gap_max_ms=GAP_MINUTES * MINUTE_MS,
            initialized_ms=max((minute * MINUTE_MS for minute in self.initialized.values()), default=None),
        )
        held = [
            HeldState(GROUP, topic_id(topic), (0,), minute * MINUTE_MS, True)
            for topic, minute in self.initialized.items()
        ]
        cluster = ClusterView(
            {} if self.watch is None else {GROUP: self.watch},
            {GROUP} if answers else set(),
            {topic_id(topic): topic for topic in TOPICS},
            {},
            (),
        )
        return list(find_abandoned_state(held, cluster, self.rules, now_ms))

    # What is true.

    def unwanted_minutes(self, topic: str) -> int:
        """Return for how long nobody has subscribed to a topic, as far as could be noticed."""
        ends = [
            self.minute if end is None else end
            for spelled, start, end in self.spells
            if spelled == topic and not (end is not None and self._is_between_looks(start, end))
        ]
        return self.minute - max(ends, default=0)

    def _is_between_looks(self, start: int, end: int) -> bool:
        """Tell whether a watch that goes on all the time can take a spell for nothing.

        Where the group was empty at both looks it cannot: the group epoch tells.
        """
        for (before, was_empty), (after, is_empty) in zip(self.looks, self.looks[1:], strict=False):
            if before <= start and end <= after and after - before <= GAP_MINUTES:
                return not (was_empty and is_empty)
        return False
