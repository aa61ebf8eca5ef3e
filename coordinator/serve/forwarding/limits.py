"""Limits of forwarding: memory, connections and timeouts."""

from typing import NamedTuple, Self

from coordinator.serve.runtime import RuntimeLimits


class ForwardingLimits(NamedTuple):
    """Limits of forwarded requests. Times are in seconds.

    `hold_s`: a request that is older than this is not sent to an owner. The owner does not know the age of a
    request. The sum of `hold_s` and the longest wait at the owner must therefore stay below
    `request_age_max_s`.

    `request_age_max_s`: when a request is this old, its connection is closed, so that the owner drops the
    request if it has not started to execute it. `pause_s`: how often held operations are routed again while
    the assignment stays the same. `moved_grace_s`: how long a former owner may still answer a request that it
    has received.

    Limits of numbers and bytes are for each owner, except `held_max` and `connections_total_max`. These limit
    the held share-partitions of all owners, and the connections to all owners. One connection to an owner is
    always allowed.
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
        """Return the maximum number of connections to each owner if this is the number of owners."""
        return max(1, min(self.connections_max, self.connections_total_max // max(1, owners)))

    @classmethod
    def for_runtime_limits(cls, limits: RuntimeLimits) -> Self:
        """Return limits of forwarding for coordinators that all have the same limits of the runtime."""
        waits_there_s = max(limits.load_wait_s, limits.write_timeout_s) + limits.tick_s
        return cls(
            hold_s=max(0.0, min(limits.load_wait_s, limits.request_age_max_s - waits_there_s)),
            request_age_max_s=limits.request_age_max_s,
        )
