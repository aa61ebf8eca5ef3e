"""The life cycle of a shard in this process."""

from enum import StrEnum


class Status(StrEnum):
    """Life cycle of a shard here."""

    LOADING = "LOADING"
    ACTIVE = "ACTIVE"
    FAILED = "FAILED"
    CLOSED = "CLOSED"
