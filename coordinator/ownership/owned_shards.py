"""The shards that this replica holds from one map to the next, and what a new map changes."""

from typing import NamedTuple

from coordinator.ownership.messages import AssignmentMessage


class OwnershipChange(NamedTuple):
    """What a map takes and gives. `elected` has with each shard whether somebody hands it over to us."""

    resigned: tuple[int, ...] = ()
    elected: tuple[tuple[int, bool], ...] = ()


class OwnedShards:
    """What one replica was elected for and was not told to resign.

    A rebalance as such takes nothing away; only a map does.  A shard that the log took away is not held, and
    so a later map that says that it is ours elects us again; one that says that it is another's resigns it,
    or nobody here would ever hear that all is well.  One that is ours again, and was somebody else's in the
    meantime, is resigned and elected anew: what we know of it is of the past.
    """

    def __init__(self) -> None:
        self.held: frozenset[int] = frozenset()
        self._taken: frozenset[int] = frozenset()

    def follow(self, decision: AssignmentMessage | None) -> OwnershipChange:
        """Follow the assignment of this replica; None takes all shards away."""
        ours = frozenset(decision.owned if decision is not None else ())
        handed_over = frozenset(decision.handed_over if decision is not None else ())
        unreleased = frozenset(decision.unreleased if decision is not None else ())
        kept = (self.held & ours) - handed_over
        resigned = sorted((self.held - kept) | (self._taken - ours))
        elected = sorted(ours - kept)
        self.held, self._taken = ours, frozenset()
        released = handed_over - unreleased
        return OwnershipChange(
            tuple(resigned), tuple((partition, partition in released) for partition in elected)
        )

    def on_fenced(self, state_partition: int) -> bool:
        """Note that the log took a shard away; return True if it was held."""
        held = state_partition in self.held
        if held:
            self.held -= {state_partition}
            self._taken |= {state_partition}
        return held
