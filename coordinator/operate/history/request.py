"""Requests to the process that reads the log; they are pickled."""

from collections.abc import Mapping
from typing import NamedTuple

from coordinator.log.other_process import LogLocation
from protocol.state_records import SharePartitionKey


class HistoryRequest(NamedTuple):
    """A request for the latest `limit` events of a share-partition.

    If `before` is set, only events below this log offset are returned. If `offset` is set, only events of the
    record with this offset are returned.
    """

    log: LogLocation
    state_partition: int
    key: SharePartitionKey
    offset: int | None
    before: int | None
    limit: int


class SkipsRequest(NamedTuple):
    """The skips of share-partitions that began at or above a start offset."""

    log: LogLocation
    state_partition: int
    from_offsets: Mapping[SharePartitionKey, int]
