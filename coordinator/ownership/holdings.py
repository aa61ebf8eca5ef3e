"""The shards that this replica holds from one map to the next, and what a new map changes."""

from typing import NamedTuple

from coordinator.ownership.messages import Assignment


class Change(NamedTuple):
    """What a map takes and gives. `elected` has with each shard whether somebody hands it over to us."""

    resigned: tuple[int, ...] = ()
    elected: tuple[tuple[int, bool], ...] = ()


class Holdings:
    """What one replica was elected for and was not told to resign.

    A rebalance as such takes nothing away; only a map does.  A shard that the log took away is not held, and
    so a later map that says that it is ours elects us again; one that says that it is another's resigns it,
    or nobody here would ever hear that all is well.  One that is ours again, and was somebody else's in the
    meantime, is resigned and elected anew: what we know of it is of the past.
    """

    def __init__(self, instance: str) -> None:
        self.held: frozenset[int] = frozenset()
        self._taken: frozenset[int] = frozenset()
        self._instance = instance

    def follow(self, assignment: Assignment | None) -> Change:
        """Go by a map; None takes everything away."""
        ours = assignment.owned_by(self._instance) if assignment is not None else frozenset()
        kept = frozenset(
            partition
            for partition in self.held & ours
            if assignment is not None and not assignment.handed_over(partition)
        )
        resigned = sorted((self.held - kept) | (self._taken - ours))
        elected = sorted(ours - kept)
        self.held, self._taken = ours, frozenset()
        return Change(
            tuple(resigned),
            tuple(
                (partition, assignment is not None and assignment.release_expected(partition))
                for partition in elected
            ),
        )

    def fenced(self, state_partition: int) -> bool:
        """Note that the log took a shard away; return True if it was held."""
        held = state_partition in self.held
        if held:
            self.held -= {state_partition}
            self._taken |= {state_partition}
        return held
