"""Choose the connections that a server at its connection limit closes to accept a new client."""

from collections.abc import Iterable
from typing import Protocol

# An eviction closes 1/16 of an address's evictable connections, at least one. An eviction closes several
# connections, because finding them takes a millisecond.
_EVICTED_SHARE = 16


class EvictableConnection(Protocol):
    """A connection that may be closed for another client: its client is not authorized, or idle."""

    @property
    def network(self) -> str:
        """The client's address; for IPv6, its network."""

    @property
    def last_active_s(self) -> float:
        """The event loop's time when the connection was accepted, or later when its client sent something."""

    def evict(self) -> None:
        """Close the connection at once."""


def evict_oldest(connections: Iterable[EvictableConnection], at_least: int = 1) -> int:
    """Evict the oldest connections of the addresses that have the most; return the number evicted.

    The number is smaller than `at_least` only if there are fewer connections.
    """
    by_network: dict[str, list[EvictableConnection]] = {}
    for each in connections:
        by_network.setdefault(each.network, []).append(each)
    evicted = 0
    while by_network and evicted < at_least:
        largest = max(by_network, key=lambda network: len(by_network[network]))
        of_network = sorted(by_network.pop(largest), key=lambda each: each.last_active_s)
        part = of_network[: max(at_least - evicted, 1 + len(of_network) // _EVICTED_SHARE)]
        for each in part:
            each.evict()
        evicted += len(part)
    return evicted
