"""Define a migration target, and plan the action for each share-partition by comparing it with the source."""

from collections import Counter
from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import NamedTuple

from coordinator.operate.migration.fold import ComparableState
from coordinator.operate.migration.readers import Progress
from coordinator.shard import ShareState
from protocol.state_records import SharePartitionKey


class MigrationAction(StrEnum):
    """The action for one share-partition."""

    COPY = "copy"
    """The target has no state of the share-partition."""
    ALREADY_PRESENT = "already there"
    """The target has the same state."""
    REPLACE = "replace"
    """The target has a different state."""
    DELETE = "delete"
    """The target has a state, and the source has none."""
    OMIT = "leave out"
    """The topic does not exist in the target's cluster, so the state could not be used."""


# Actions that remove state from the target; they require an option.
DESTRUCTIVE = (MigrationAction.REPLACE, MigrationAction.DELETE)


class MigrationPlan(NamedTuple):
    """The action for every share-partition of source and target."""

    steps: Mapping[SharePartitionKey, MigrationAction]

    def keys_with_action(self, *wanted: MigrationAction) -> list[SharePartitionKey]:
        return [key for key, step in self.steps.items() if step in wanted]

    def count_actions(self) -> dict[MigrationAction, int]:
        counted = Counter(self.steps.values())
        return {step: counted[step] for step in MigrationAction}

    @property
    def is_done(self) -> bool:
        """True if there is nothing to write."""
        return not self.keys_with_action(MigrationAction.COPY, *DESTRUCTIVE)


class LookupResult(NamedTuple):
    """The state of a target, including share-partitions that the source does not have.

    `unknown_topics` are the wanted share-partitions whose topic does not exist in the target's cluster.
    `owners` maps each claimed state partition to its owner.
    """

    held: Mapping[SharePartitionKey, ComparableState]
    unknown_topics: frozenset[SharePartitionKey] = frozenset()
    owners: Mapping[int, str] = {}


def make_plan(wanted: Mapping[SharePartitionKey, ComparableState], lookup: LookupResult) -> MigrationPlan:
    """Return the plan after which the target has the wanted states."""
    held = lookup.held
    steps: dict[SharePartitionKey, MigrationAction] = {}
    for key, state in wanted.items():
        if key in lookup.unknown_topics:
            steps[key] = MigrationAction.OMIT
        elif key not in held:
            steps[key] = MigrationAction.COPY
        else:
            steps[key] = MigrationAction.ALREADY_PRESENT if held[key] == state else MigrationAction.REPLACE
    steps.update({key: MigrationAction.DELETE for key in held if key not in wanted})
    return MigrationPlan(steps)


class MigrationDifference(NamedTuple):
    """A share-partition that differs between source and target, and the difference."""

    key: SharePartitionKey
    what: str


def find_differences(
    wanted: Mapping[SharePartitionKey, ComparableState], held: Mapping[SharePartitionKey, ComparableState]
) -> list[MigrationDifference]:
    """Return every share-partition that differs between source and target."""
    found = []
    for key, state in wanted.items():
        there = held.get(key)
        if there is None:
            found.append(MigrationDifference(key, "the target has no state of it"))
        elif there != state:
            found.append(MigrationDifference(key, _describe_difference(state, there)))
    found += [MigrationDifference(key, "the source has no state of it") for key in held if key not in wanted]
    return found


def _describe_difference(state: ComparableState, there: ComparableState) -> str:
    fields = [
        f"{name.replace('_', ' ')} {is_there!r}, not {should_be!r}"
        for name, is_there, should_be in zip(ComparableState._fields, there, state, strict=True)
        if is_there != should_be and name != "batches"
    ]
    return "; ".join(fields) or "its state batches differ"


class MigrationTarget:
    """The location that a migration writes state to. By default, a target stores all fields of a state."""

    async def query_features(self) -> None:
        """Query the features of the target. Changes nothing. Raises MigrationRefused."""

    def storable_state(self, state: ShareState) -> ComparableState:
        """Return the state as the target stores it."""
        return ComparableState.from_state(state)

    def describe_losses(self, states: Mapping[SharePartitionKey, ShareState]) -> list[str]:
        """Return one sentence for each part of the states that the target cannot store."""
        return []

    async def lookup(
        self, wanted: Mapping[SharePartitionKey, ComparableState], progress: Progress
    ) -> LookupResult:
        """Return the current state of the target. Changes nothing."""
        raise NotImplementedError

    async def check_unlocked(self) -> None:
        """Raise LogLocked if another process locks the target. Changes nothing."""

    async def apply_plan(
        self,
        states: Mapping[SharePartitionKey, ShareState],
        plan_for: Callable[[LookupResult], MigrationPlan],
        progress: Progress,
    ) -> list[MigrationDifference]:
        """Write the states according to the plan; return the share-partitions that could not be written.

        `plan_for` is called after the target is claimed or locked. If `plan_for` raises an exception, nothing
        is changed.
        """
        raise NotImplementedError
