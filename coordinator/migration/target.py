"""The port to a target: what is looked at, and how a plan is carried out."""

from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol

from coordinator.migration.fold import ComparableState
from coordinator.migration.plan import MigrationDifference, MigrationPlan
from coordinator.migration.readers import Progress
from coordinator.shard import ShareState
from protocol.state_records import SharePartitionKey


class LookupResult(NamedTuple):
    """What a target holds, of other share-partitions too.

    `unknown_topics` are the wanted share-partitions whose topic its cluster does not know.  `owners` are the
    state partitions that somebody holds, and who.
    """

    held: Mapping[SharePartitionKey, ComparableState]
    unknown_topics: frozenset[SharePartitionKey] = frozenset()
    owners: Mapping[int, str] = {}


class Target(Protocol):
    """A place that state is brought to."""

    def as_stored(self, state: ShareState) -> ComparableState:
        """Return what the target would hold of a state, known after the first `lookup`."""
        ...

    def notes(self, states: Mapping[SharePartitionKey, ShareState]) -> list[str]:
        """Return what the target cannot hold of these states, one sentence each."""
        ...

    async def begin(self) -> None:
        """Find out what kind of target it is. Changes nothing."""
        ...

    async def lookup(
        self, wanted: Mapping[SharePartitionKey, ComparableState], progress: Progress
    ) -> LookupResult:
        """Return what the target holds now. Changes nothing."""
        ...

    async def check_unlocked(self) -> None:
        """Raise what would keep `apply_plan` from beginning, if `lookup` does not tell it. Changes
        nothing.
        """
        ...

    async def apply_plan(
        self,
        states: Mapping[SharePartitionKey, ShareState],
        plan_for: Callable[[LookupResult], MigrationPlan],
        progress: Progress,
    ) -> list[MigrationDifference]:
        """Bring the states there, and return those that could not be brought.

        `plan_for` is asked as soon as nobody else can write any more; what it raises ends the migration
        before anything is changed.
        """
        ...
