"""Static ownership: one process owns all shards. Static ownership is the default, and the only ownership with
a journal.

With a state topic, a second process fences the first, which then keeps its shards closed until it is
restarted.
"""

from coordinator.cluster.ownership.base import Assignment, OwnershipListener, Replica


class StaticOwnership:
    """An `Ownership` without a group; see `coordinator.cluster.ownership.base`."""

    def __init__(self, replica: Replica, state_partitions: int) -> None:
        self._assignment = Assignment(0, (replica,), (0,) * state_partitions)

    async def start(self, listener: OwnershipListener) -> None:
        """Elect this process for all shards."""
        for state_partition in range(len(self._assignment.owners)):
            listener.on_elected(state_partition, release_expected=False)
        listener.on_assignment_changed(self._assignment)

    async def drain(self, timeout_s: float) -> None:
        """Do nothing: there is no other owner."""

    async def stop(self) -> None:
        """Do nothing: no other process takes the shards over."""

    def lease_is_fresh(self) -> bool:
        """Return True, because no other process can take over through a group."""
        return True

    def on_fenced(self, state_partition: int) -> None:
        """Keep the shard closed."""

    def hand_over(self, state_partition: int, instance: str) -> None:
        """Do nothing: there is no other owner."""

    def health(self) -> list[str]:
        """Return an empty list; the runtime reports its own problems."""
        return []
