"""The request for one page of a delivery history; it is pickled for the process that reads the log."""

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
