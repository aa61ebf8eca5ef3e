"""What the log needs of a Kafka cluster, in plain values: the seam to the client library, and to its fake.

Every request names the broker that it goes to and a *lane*.  A broker works on one request of a connection
at a time and holds an acks=all produce until the replicas have it, so each lane is a connection of its own:
what travels on different lanes does not wait for each other.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from coordinator.errors import LogError, LogRefused
from coordinator.kafka.metadata import NO_NODE as NO_NODE


class NoResponse(LogError):
    """A broker did not answer. With `sent` it may have done what it was asked, now or later."""

    def __init__(self, message: str, *, sent: bool) -> None:
        super().__init__(message)
        self.sent = sent


class UnsupportedApi(LogRefused):
    """The broker does not have this API, or no version of it that we speak."""


class ProduceResult(NamedTuple):
    """The fate of one batch: Kafka's error code, and where it went if that is 0."""

    error_code: int
    base_offset: int


class ListedOffset(NamedTuple):
    """An end of the log of one partition."""

    error_code: int
    log_offset: int


class FetchResult(NamedTuple):
    """Whole batches and maybe the beginning of one more, as stored."""

    error_code: int
    start_offset: int
    data: bytes


class ProducerId(NamedTuple):
    """What a broker knows a producer by; with an error code other than 0 there is none."""

    error_code: int
    producer_id: int
    producer_epoch: int


class TopicDescription(NamedTuple):
    """A topic as it stands: how many partitions, the fewest replicas of any, and whether all have leaders."""

    partitions: int
    replicas: int
    ready: bool


class Cluster(Protocol):
    """A Kafka cluster, for one topic.  Raises NoResponse where a broker does not answer."""

    async def connect(self) -> None:
        """Find the cluster. Raises LogUnavailable if none of the bootstrap servers leads to it, LogRefused if
        one of them does not let us in.
        """
        ...

    async def close(self) -> None:
        """Close all connections."""
        ...

    def leader(self, partition: int) -> int:
        """Return the node that leads a partition of the topic as far as is known, or NO_NODE."""
        ...

    def refresh_soon(self) -> None:
        """Ask who leads what, soon and not too often: something did not find its leader."""
        ...

    def unreachable_reason(self) -> str | None:
        """Return one sentence for a human while no broker can be reached, else None."""
        ...

    def pin_topic_id(self) -> bytes:
        """Return the id of the topic; from now on another topic of the same name is not used.

        Returns NO_TOPIC_ID if no broker reported an id: no broker answered, or they are below Kafka 3.1.
        """
        ...

    def recreated_reason(self) -> str | None:
        """Return one sentence if the topic was deleted and created again since its id was pinned."""
        ...

    async def produce(
        self, node: int, channel: str, batches: Sequence[tuple[int, bytes]], timeout_ms: int
    ) -> Mapping[int, ProduceResult]:
        """Append one batch to each of these partitions, acks=all."""
        ...

    async def list_ends(
        self, node: int, channel: str, partitions: Sequence[int]
    ) -> Mapping[int, ListedOffset]:
        """Return the offset behind the last committed record of each partition (the high watermark)."""
        ...

    async def list_starts(
        self, node: int, channel: str, partitions: Sequence[int]
    ) -> Mapping[int, ListedOffset]:
        """Return the offset of the first record of each partition."""
        ...

    async def fetch(
        self,
        node: int,
        channel: str,
        positions: Mapping[int, int],
        bytes_max: int,
        max_wait_ms: int = 0,
    ) -> Mapping[int, FetchResult]:
        """Return committed batches from these log offsets on; if there are none, wait up to `max_wait_ms`."""
        ...

    async def delete_records(self, node: int, offsets: Mapping[int, int]) -> Mapping[int, int]:
        """Delete the records below these log offsets; return error codes. Raises Unsupported."""
        ...

    async def producer_id(self, transactional_id: str | None) -> ProducerId:
        """Get a producer id, with a higher epoch than anybody before had with the same transactional id."""
        ...

    async def brokers(self) -> int:
        """Return how many brokers there are."""
        ...

    async def describe_topic(self) -> TopicDescription | None:
        """Return what the topic is like; None if there is none. Never creates it."""
        ...

    async def create_topic(self, partitions: int, replicas: int, configs: Mapping[str, str]) -> bool:
        """Create the topic; return False if somebody else has done so by now.

        Raises LogRefused if it may not be made, LogUnavailable if it cannot be made now.
        """
        ...

    async def topic_configs(self) -> Mapping[str, str] | None:
        """Return the topic's configs; None if we may not see them."""
        ...
