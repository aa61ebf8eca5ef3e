"""Requests to the process that reads the log; they are pickled."""

from collections.abc import Mapping
from typing import NamedTuple

from coordinator.log.other_process import LogLocation
from protocol.state_records import SharePartitionKey


class HistoryRequest(NamedTuple):
    """The latest `limit` events, before log offset `before` if set; of the record at `offset` if set."""

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
