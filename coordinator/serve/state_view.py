"""The read-only view of state that the HTTP server, the metrics and the signals use.

`Runtime` (a coordinator) and `LogFollower` (an observer) both provide it.
"""

from collections.abc import AsyncIterator, Collection
from typing import Protocol

from coordinator.metrics import ShardView
from coordinator.shard import ShareState
from protocol.state_records import SharePartitionKey


class StateView(Protocol):
    """The state of all share-partitions of this process. Used on the event loop only."""

    @property
    def state_partitions(self) -> int:
        """The number of state partitions."""

    @property
    def initial_load_done(self) -> bool:
        """True once every shard of this process was loaded."""

    def owned_shards(self) -> list[int]:
        """Return the shards of this process."""

    def appends_in_flight(self) -> int:
        """Return the number of appends that the log has not confirmed yet."""

    def health(self) -> list[str]:
        """Return why this process is not ready, one sentence each; an empty list if it is ready."""

    def shard_views(self) -> list[ShardView]:
        """Return a view of every shard; the cost does not depend on the size of the state."""

    def outdated_partitions(self) -> Collection[int]:
        """Return the state partitions whose state here may be older than the log."""

    def share_partitions(self) -> AsyncIterator[tuple[SharePartitionKey, ShareState]]:
        """Iterate over all states, letting other work on the event loop run in between."""

    def share_partition(self, key: SharePartitionKey) -> ShareState | None:
        """Return the state of one share-partition, or None."""
