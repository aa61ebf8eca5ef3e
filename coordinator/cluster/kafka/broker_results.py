"""The results of requests to brokers, in plain values. `Brokers` sends the requests."""

from typing import NamedTuple

from coordinator.cluster.kafka.metadata import NO_NODE as NO_NODE
from coordinator.errors import LogError, LogRefused


class NoResponse(LogError):
    """A broker did not answer.

    If `sent` is True, the broker may have executed the request, or may still execute it.
    """

    def __init__(self, message: str, *, sent: bool) -> None:
        super().__init__(message)
        self.sent = sent


class UnsupportedApi(LogRefused):
    """The broker does not support this API, or none of the versions that this client supports."""


class ProduceResult(NamedTuple):
    """The result for one batch: Kafka's error code, and the base offset if the code is 0."""

    error_code: int
    base_offset: int


class ListedOffset(NamedTuple):
    """An offset of one partition, if the error code is 0."""

    error_code: int
    log_offset: int


class FetchResult(NamedTuple):
    """Fetched batches as stored; the last one may be incomplete."""

    error_code: int
    start_offset: int
    data: bytes


class ProducerId(NamedTuple):
    """A producer id and its producer epoch, if the error code is 0."""

    error_code: int
    producer_id: int
    producer_epoch: int


class TopicDescription(NamedTuple):
    """A topic: its partition count, the fewest replicas of a partition, and whether all have leaders."""

    partitions: int
    replicas: int
    ready: bool
