"""What is to be done with each share-partition, from what both sides hold. Pure."""

from collections import Counter
from collections.abc import Collection, Mapping
from enum import StrEnum
from typing import NamedTuple

from coordinator.migration.fold import Held
from protocol.state_records import SharePartitionKey


class Step(StrEnum):
    """What is to be done with one share-partition."""

    COPY = "copy"
    """The target has no state of it."""
    THERE = "already there"
    """The target holds the same state."""
    REPLACE = "replace"
    """The target holds another state."""
    DELETE = "delete"
    """The target holds a state, and the source has none."""
    LEAVE_OUT = "leave out"
    """The cluster does not know its topic, so nobody could use the state."""


# What takes state away from the target, and so happens only if it is asked for.
DESTRUCTIVE = (Step.REPLACE, Step.DELETE)


class Plan(NamedTuple):
    """The step of every share-partition that either side has."""

    steps: Mapping[SharePartitionKey, Step]

    def keys(self, *wanted: Step) -> list[SharePartitionKey]:
        """Return the share-partitions with one of these steps."""
        return [key for key, step in self.steps.items() if step in wanted]

    def counts(self) -> dict[Step, int]:
        """Return how many share-partitions have each step."""
        counted = Counter(self.steps.values())
        return {step: counted[step] for step in Step}

    @property
    def is_done(self) -> bool:
        """True if there is nothing to write."""
        return not self.keys(Step.COPY, *DESTRUCTIVE)


def make_plan(
    wanted: Mapping[SharePartitionKey, Held],
    held: Mapping[SharePartitionKey, Held],
    unknown_topics: Collection[SharePartitionKey],
) -> Plan:
    """Compare what the target should hold with what it holds."""
    steps: dict[SharePartitionKey, Step] = {}
    for key, state in wanted.items():
        if key in unknown_topics:
            steps[key] = Step.LEAVE_OUT
        elif key not in held:
            steps[key] = Step.COPY
        else:
            steps[key] = Step.THERE if held[key] == state else Step.REPLACE
    steps.update({key: Step.DELETE for key in held if key not in wanted})
    return Plan(steps)


class Difference(NamedTuple):
    """A share-partition that is not the same on both sides, and in what."""

    key: SharePartitionKey
    what: str


def differences(
    wanted: Mapping[SharePartitionKey, Held], held: Mapping[SharePartitionKey, Held]
) -> list[Difference]:
    """Return every share-partition that is not the same on both sides."""
    found = []
    for key, state in wanted.items():
        there = held.get(key)
        if there is None:
            found.append(Difference(key, "the target has no state of it"))
        elif there != state:
            found.append(Difference(key, _what_differs(state, there)))
    found += [Difference(key, "the source has no state of it") for key in held if key not in wanted]
    return found


def _what_differs(state: Held, there: Held) -> str:
    fields = [
        f"{name.replace('_', ' ')} {is_there!r}, not {should_be!r}"
        for name, is_there, should_be in zip(Held._fields, there, state, strict=True)
        if is_there != should_be and name != "batches"
    ]
    return "; ".join(fields) or "its state batches differ"
