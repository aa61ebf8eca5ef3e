"""Plan the action for each share-partition by comparing source and target. Pure."""

from collections import Counter
from collections.abc import Collection, Mapping
from enum import StrEnum
from typing import NamedTuple

from coordinator.operate.migration.fold import ComparableState
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

    def keys(self, *wanted: MigrationAction) -> list[SharePartitionKey]:
        """Return the share-partitions with one of these actions."""
        return [key for key, step in self.steps.items() if step in wanted]

    def counts(self) -> dict[MigrationAction, int]:
        """Return the number of share-partitions for each action."""
        counted = Counter(self.steps.values())
        return {step: counted[step] for step in MigrationAction}

    @property
    def is_done(self) -> bool:
        """True if there is nothing to write."""
        return not self.keys(MigrationAction.COPY, *DESTRUCTIVE)


def make_plan(
    wanted: Mapping[SharePartitionKey, ComparableState],
    held: Mapping[SharePartitionKey, ComparableState],
    unknown_topics: Collection[SharePartitionKey],
) -> MigrationPlan:
    """Return the plan after which the target has the wanted states."""
    steps: dict[SharePartitionKey, MigrationAction] = {}
    for key, state in wanted.items():
        if key in unknown_topics:
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
