"""Define the interface of a migration target: read its state and apply a plan."""

from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol

from coordinator.operate.migration.fold import ComparableState
from coordinator.operate.migration.plan import MigrationDifference, MigrationPlan
from coordinator.operate.migration.readers import Progress
from coordinator.shard import ShareState
from protocol.state_records import SharePartitionKey


class LookupResult(NamedTuple):
    """The state of a target, including share-partitions that the source does not have.

    `unknown_topics` are the wanted share-partitions whose topic does not exist in the target's cluster.
    `owners` maps each claimed state partition to its owner.
    """

    held: Mapping[SharePartitionKey, ComparableState]
    unknown_topics: frozenset[SharePartitionKey] = frozenset()
    owners: Mapping[int, str] = {}


class MigrationTarget(Protocol):
    """The location that a migration writes state to."""

    def as_stored(self, state: ShareState) -> ComparableState:
        """Return the state as the target stores it."""
        ...

    def describe_losses(self, states: Mapping[SharePartitionKey, ShareState]) -> list[str]:
        """Return one sentence for each part of the states that the target cannot store."""
        ...

    async def query_features(self) -> None:
        """Query the features of the target. Changes nothing."""
        ...

    async def lookup(
        self, wanted: Mapping[SharePartitionKey, ComparableState], progress: Progress
    ) -> LookupResult:
        """Return the current state of the target. Changes nothing."""
        ...

    async def check_unlocked(self) -> None:
        """Raise LogLocked if another process locks the target. Changes nothing."""
        ...

    async def apply_plan(
        self,
        states: Mapping[SharePartitionKey, ShareState],
        plan_for: Callable[[LookupResult], MigrationPlan],
        progress: Progress,
    ) -> list[MigrationDifference]:
        """Write the states; return the share-partitions that could not be written.

        `plan_for` is called after the target is claimed or locked. If it raises, nothing is changed.
        """
        ...
