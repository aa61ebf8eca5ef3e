"""The interface of the state log to a Kafka cluster, in plain values, with a real and a fake implementation.

Produce, list and fetch requests name their broker and a *channel*. A broker processes the requests of a
connection in order, and answers an acks=all produce after the replicas have it. Each channel is a separate
connection, so requests on different channels do not wait for each other.
"""

from collections.abc import Awaitable, Mapping, Sequence
from typing import NamedTuple, Protocol

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


class Cluster(Protocol):
    """A Kafka cluster, for one topic. Requests raise NoResponse if a broker does not answer."""

    async def connect(self) -> None:
        """Connect to the cluster.

        Raises LogUnavailable if no bootstrap server can be used, LogRefused if one of them rejects this
        client.
        """
        ...

    async def close(self) -> None:
        """Close all connections."""
        ...

    def leader(self, partition: int) -> int:
        """Return the leader of a partition of the topic, NO_NODE if it is not known."""
        ...

    def leader_epoch(self, partition: int) -> int:
        """Return the newest known leader epoch of a partition, NO_LEADER_EPOCH if it is not known."""
        ...

    def refresh_soon(self) -> None:
        """Request a metadata refresh after an error; the frequency of refreshes is limited."""
        ...

    def unreachable_reason(self) -> str | None:
        """Return one sentence while no broker can be reached, else None."""
        ...

    def pin_topic_id(self) -> bytes:
        """Return the topic id and pin it: another topic with the same name is not used from now on.

        Returns NO_TOPIC_ID if no broker has answered.
        """
        ...

    def recreated_reason(self) -> str | None:
        """Return one sentence if the topic was deleted and created again after it was pinned, else None."""
        ...

    def produce(
        self, node: int, channel: str, batches: Sequence[tuple[int, bytes]], timeout_ms: int
    ) -> Awaitable[Mapping[int, ProduceResult]]:
        """Append one batch to each of these partitions, acks=all; a channel takes one request at a time."""
        ...

    async def list_end_offsets(
        self, node: int, channel: str, partitions: Sequence[int]
    ) -> Mapping[int, ListedOffset]:
        """Return the high watermark of each partition."""
        ...

    async def list_start_offsets(
        self, node: int, channel: str, partitions: Sequence[int]
    ) -> Mapping[int, ListedOffset]:
        """Return the log start offset of each partition."""
        ...

    async def fetch(
        self,
        node: int,
        channel: str,
        positions: Mapping[int, int],
        bytes_max: int,
        max_wait_ms: int = 0,
    ) -> Mapping[int, FetchResult]:
        """Return committed batches from these log offsets; if there are none, wait up to `max_wait_ms`."""
        ...

    async def delete_records(self, node: int, offsets: Mapping[int, int]) -> Mapping[int, int]:
        """Delete the records below these log offsets; return error codes. Raises UnsupportedApi."""
        ...

    async def producer_id(self, transactional_id: str | None) -> ProducerId:
        """Get a producer id, with a higher producer epoch than any before for the same transactional id."""
        ...

    async def broker_count(self) -> int:
        """Return the number of brokers."""
        ...

    async def describe_topic(self) -> TopicDescription | None:
        """Return the topic, None if it does not exist. Never creates it."""
        ...

    async def create_topic(self, partitions: int, replicas: int, configs: Mapping[str, str]) -> bool:
        """Create the topic; return False if it exists already.

        Raises LogRefused if this client may not create it, LogUnavailable if it cannot be created now.
        """
        ...

    async def topic_configs(self) -> Mapping[str, str] | None:
        """Return the configs of the topic, None if they cannot be read."""
        ...
