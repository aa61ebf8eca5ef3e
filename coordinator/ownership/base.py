"""The port to ownership: which replica should own which shard.

Only ownership elects.  A shard that the log has taken away from us (somebody else's claim) stays closed until
we are elected again; two owners that reopen by themselves would fight for ever.
"""

from typing import Protocol

import msgspec

# In place of a replica: nobody owns the shard.
NOBODY = -1


class Replica(msgspec.Struct, frozen=True, array_like=True):
    """One coordinator process, as the others see it.

    `instance` is random at the start of the process: it tells two processes with one address apart. `wire` is
    the address that FindCoordinator answers, "host:port", `http` that of the admin API ("host:port", over TLS
    "https://host:port") or "". `broker_id` is the broker that it sits beside, or -1. `connections` is how
    many connections a broker should open to it.
    """

    instance: str
    wire: str
    http: str = ""
    broker_id: int = -1
    connections: int = 4


class Assignment(msgspec.Struct, frozen=True):
    """Who owns what: the same value on all replicas that have heard of this generation.

    `owners` has for each state partition the place of its owner in `replicas`, or NOBODY.
    """

    generation: int
    replicas: tuple[Replica, ...]
    owners: tuple[int, ...]

    def owner(self, state_partition: int) -> Replica | None:
        """Return the owner of a shard, or None."""
        place = self.owners[state_partition]
        return None if place == NOBODY else self.replicas[place]


class OwnershipListener(Protocol):
    """Who is told. All methods are called on the event loop that `start` was called on, in order."""

    def assignment_changed(self, assignment: Assignment | None) -> None:
        """Take a new map of all owners; None: it is not known who owns what."""
        ...

    def on_elected(self, state_partition: int, *, release_expected: bool) -> None:
        """Own a shard from now on. With `release_expected` its owner until now lives and hands it over."""
        ...

    def on_resigned(self, state_partition: int) -> None:
        """Own a shard no more: finish what is under way, and let the next owner have it."""
        ...

    def ready(self) -> bool:
        """Tell whether this replica could serve shards. Called from any thread, and often.

        What is not well of one shard alone is no reason: all of them would move for it.
        """
        ...

    def is_resigning(self) -> bool:
        """Tell whether some shard is not yet released. Called from any thread."""
        ...


class Ownership(Protocol):
    """Elects and resigns the shards of this process. `start` once, `stop` once."""

    async def start(self, listener: OwnershipListener) -> None:
        """Begin; the first election may come within this call or much later. Never waits for a cluster."""
        ...

    async def drain(self, timeout_s: float) -> None:
        """Give all shards away; return when others have them, or when the time is over."""
        ...

    async def stop(self) -> None:
        """End at once; shards that we still have are taken over when the others miss us."""
        ...

    def lease_is_fresh(self) -> bool:
        """Tell whether we may answer reads: False when we have not heard of the others for too long."""
        ...

    def on_fenced(self, state_partition: int) -> None:
        """Note that the log gave a shard of ours to somebody else."""
        ...

    def hand_over(self, state_partition: int, instance: str) -> None:
        """Wish a shard of ours to be another replica's; anybody else's if `instance` is "".

        Whether it comes to be shows in the next map; then the wish is forgotten.
        """
        ...

    def health(self) -> list[str]:
        """Return why this process cannot own what it should, one sentence each."""
        ...
