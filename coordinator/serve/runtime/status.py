"""The life cycle of a shard in this process."""

from enum import StrEnum


class ShardStatus(StrEnum):
    """Where a shard is in its life cycle in this process."""

    LOADING = "LOADING"
    ACTIVE = "ACTIVE"
    FAILED = "FAILED"
    CLOSED = "CLOSED"
