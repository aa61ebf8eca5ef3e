"""The read-only view of state that the HTTP server, the metrics and the signals use.

`Runtime` (a coordinator) and `LogFollower` (an observer) both provide it.
"""

from collections.abc import AsyncIterator, Collection
from typing import Protocol

import msgspec

from coordinator.shard import ShareState
from protocol.state_records import SharePartitionKey


class ShardView(msgspec.Struct, frozen=True, kw_only=True):
    """The status of one shard. Offsets are log offsets; sizes are in bytes."""

    state_partition: int
    status: str
    failure: str | None
    owner_epoch: int
    share_partitions: int
    start_log_offset: int
    end_log_offset: int
    redundant_offset: int
    load_ms: int
    loaded_records: int
    live_bytes: int
    state_batches: int


class StateView(Protocol):
    """The state of all share-partitions of this process. Used on the event loop only."""

    @property
    def state_partitions(self) -> int:
        """The number of state partitions."""
        ...

    @property
    def initial_load_done(self) -> bool:
        """True once every shard of this process was loaded."""
        ...

    def owned_shards(self) -> list[int]:
        """Return the shards of this process."""
        ...

    def appends_in_flight(self) -> int:
        """Return the number of appends that the log has not confirmed yet."""
        ...

    def health(self) -> list[str]:
        """Return why this process is not ready, one sentence each; an empty list if it is ready."""
        ...

    def shard_views(self) -> list[ShardView]:
        """Return a view of every shard; the cost does not depend on the size of the state."""
        ...

    def outdated_partitions(self) -> Collection[int]:
        """Return the state partitions whose state here may be older than the log."""
        ...

    def share_partitions(self) -> AsyncIterator[tuple[SharePartitionKey, ShareState]]:
        """Iterate over all states, letting other work on the event loop run in between."""
        ...

    def share_partition(self, key: SharePartitionKey) -> ShareState | None:
        """Return the state of one share-partition, or None."""
        ...
