"""The bounds of forwarding, each with a name. Times in seconds of loop time."""

from typing import NamedTuple, Self

from coordinator.runtime import RuntimeLimits


class ForwardingLimits(NamedTuple):
    """How much may be on its way to other coordinators, or wait to be, and how long.

    `hold_s`: a request that is older is not sent to an owner any more. What it then waits there comes on top,
    and both together must stay below `request_age_max_s`, which the owner cannot see.
    `request_age_max_s`: an answer that has not come by then is not waited for, and the connection is closed,
    so that the owner drops what it has not begun.
    `pause_s`: from one look at what is held to the next, while no new map comes.
    `moved_grace_s`: how long a coordinator that was asked, and owns the shard no more, may still answer.
    The counts and bytes are for each owner, except `held_max`, which counts share-partitions, and
    `connections_total_max`: in a large group, there are fewer connections to each owner, and at least one.
    """

    hold_s: float = 10.0
    request_age_max_s: float = 25.0
    pause_s: float = 0.1
    moved_grace_s: float = 0.5
    connect_s: float = 2.0
    connections_max: int = 8
    connections_total_max: int = 1_000
    requests_in_flight_max: int = 256
    bytes_in_flight_max: int = 64 * 1024 * 1024
    held_max: int = 5_000

    def connections_to_each(self, owners: int) -> int:
        """Return how many connections there may be to each of so many owners."""
        return max(1, min(self.connections_max, self.connections_total_max // max(1, owners)))

    @classmethod
    def for_runtime_limits(cls, limits: RuntimeLimits) -> Self:
        """Return the bounds that go with those of the runtimes, which are the same at all coordinators."""
        waits_there_s = max(limits.load_wait_s, limits.write_timeout_s) + limits.tick_s
        return cls(
            hold_s=max(0.0, min(limits.load_wait_s, limits.request_age_max_s - waits_there_s)),
            request_age_max_s=limits.request_age_max_s,
        )
