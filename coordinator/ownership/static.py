"""One process owns all shards: the default, and all that a journal needs.

With a Kafka topic, a second process that is started so deposes the first, which then stays closed until it is
started again.
"""

from coordinator.ownership.base import Assignment, OwnershipListener, Replica


class StaticOwnership:
    """An `Ownership` without a group. See `coordinator.ownership.base` for the promises."""

    def __init__(self, replica: Replica, state_partitions: int) -> None:
        self._assignment = Assignment(0, (replica,), (0,) * state_partitions)

    async def start(self, listener: OwnershipListener) -> None:
        """Elect this process for all shards."""
        for state_partition in range(len(self._assignment.owners)):
            listener.on_elected(state_partition, release_expected=False)
        listener.assignment_changed(self._assignment)

    async def drain(self, timeout_s: float) -> None:
        """Do nothing: there is nobody to give the shards to."""

    async def stop(self) -> None:
        """Do nothing: the shards end with the process."""

    def lease_is_fresh(self) -> bool:
        """Return True: nobody else is told to take over."""
        return True

    def on_fenced(self, state_partition: int) -> None:
        """Leave the shard to whoever took it."""

    def hand_over(self, state_partition: int, instance: str) -> None:
        """Do nothing: there is nobody to give a shard to."""

    def health(self) -> list[str]:
        """Return nothing: what the runtime says is all."""
        return []
