"""Track the shards of this replica between assignments, and compute what a new assignment changes."""

from typing import NamedTuple

from coordinator.cluster.ownership.messages import AssignmentMessage


class OwnershipChange(NamedTuple):
    """The shards that an assignment elects or resigns.

    `elected` has pairs (shard, whether another member hands the shard over).
    """

    resigned: tuple[int, ...] = ()
    elected: tuple[tuple[int, bool], ...] = ()


class OwnedShards:
    """The shards that this replica was elected for and has not resigned.

    Only an assignment takes shards away; a rebalance alone does not.  A fenced shard is not held. If a later
    assignment gives it to this replica, it is elected again; if it goes to another replica, it is resigned.
    A shard that another replica owned in the meantime is resigned and elected again, because its state here
    is outdated.
    """

    def __init__(self) -> None:
        self.held: frozenset[int] = frozenset()
        self._taken: frozenset[int] = frozenset()

    def apply_assignment(self, decision: AssignmentMessage | None) -> OwnershipChange:
        """Apply the assignment of this replica; None takes all shards away."""
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
        """Record that a shard was fenced by the log; return True if it was held."""
        held = state_partition in self.held
        if held:
            self.held -= {state_partition}
            self._taken |= {state_partition}
        return held
