"""The interface of ownership: which replica should own which shard.

Only ownership elects an owner. If another process has claimed a shard in the log, this process keeps the
shard closed until it is elected again. If two fenced processes claimed the shard again without an election,
they would fence each other forever.
"""

from typing import Protocol

import msgspec

# The index of the owner of a shard that has no owner.
NOBODY = -1


class Replica(msgspec.Struct, frozen=True, array_like=True):
    """One coordinator process, as other replicas see it.

    `instance` is the instance id: random at each start of the process, so that it distinguishes two processes
    with the same address. `wire` is the address in FindCoordinator responses, "host:port". `http` is the
    address of the HTTP API ("host:port", with TLS "https://host:port") or "". `broker_id` is the broker on
    the same host, or -1. `connections` is the number of connections that a broker should open to it.
    """

    instance: str
    wire: str
    http: str = ""
    broker_id: int = -1
    connections: int = 4


class Assignment(msgspec.Struct, frozen=True):
    """The owners of all shards in one generation. All replicas that know the generation have the same owners.

    `owners` has for each state partition the index of its owner in `replicas`, or NOBODY.
    """

    generation: int
    replicas: tuple[Replica, ...]
    owners: tuple[int, ...]

    def owner(self, state_partition: int) -> Replica | None:
        place = self.owners[state_partition]
        return None if place == NOBODY else self.replicas[place]


class OwnershipListener(Protocol):
    """Receives changes of ownership, in their order, on the event loop that has called `Ownership.start`."""

    def on_assignment_changed(self, assignment: Assignment | None) -> None:
        """Use a new assignment; None if the owners are not known."""

    def on_elected(self, state_partition: int, *, release_expected: bool) -> None:
        """Own a shard from now on. With `release_expected`, its current owner hands it over."""

    def on_resigned(self, state_partition: int) -> None:
        """Stop owning a shard: finish appends in flight, and release it for the next owner."""

    def is_ready_to_serve(self) -> bool:
        """Return whether this replica could serve shards. Called often, from any thread.

        Problems of single shards are ignored: a replica that is not ready loses all its shards.
        """

    def is_resigning(self) -> bool:
        """Return whether a resigned shard is not released in the log yet. Called from any thread."""


class Ownership(Protocol):
    """Elects and resigns the shards of this process. Call `start` and `stop` once each."""

    async def start(self, listener: OwnershipListener) -> None:
        """Start without waiting for a cluster; the first election may come during or after this call."""

    async def drain(self, timeout_s: float) -> None:
        """Hand all shards over; return when other replicas own them, or at the timeout."""

    async def stop(self) -> None:
        """Stop at once; the remaining shards are taken over after the session timeout."""

    def lease_is_fresh(self) -> bool:
        """Return whether shards may be claimed: the group has recently confirmed this process as a member."""

    def on_fenced(self, state_partition: int) -> None:
        """Record that another process has claimed a shard of this process in the log."""

    def hand_over(self, state_partition: int, instance: str) -> None:
        """Request the hand-over of a shard to the replica with this instance id; "" means any other replica.

        The request applies to the next assignment only, which shows whether the shard was moved.
        """

    def health(self) -> list[str]:
        """Return why this process cannot own the shards that it should own, one sentence each."""
