"""The life cycle of a shard in this process."""

from enum import StrEnum


class ShardStatus(StrEnum):
    """The state of a shard in this process; `shard_runner` describes the transitions."""

    LOADING = "LOADING"
    ACTIVE = "ACTIVE"
    FAILED = "FAILED"
    CLOSED = "CLOSED"
