"""Requests about topics that the generated schemas encode: Metadata, Produce and Fetch.

Metadata has topic ids and leader epochs (KIP-516, KIP-320). Produce and Fetch are by topic id, so brokers
reject them if the topic was created again.
"""

from collections.abc import Iterable, Mapping, Sequence

from coordinator.cluster.kafka.broker_results import FetchResult, ProduceResult
from coordinator.cluster.kafka.generated_requests import GeneratedRequest
from coordinator.cluster.kafka.metadata import (
    NO_LEADER_EPOCH,
    NO_TOPIC_ID,
    ClusterMetadata,
    MergedTopicMetadata,
    PartitionMetadata,
    TopicMetadata,
)
from protocol.errors import ErrorCode
from protocol.messages import fetch as fetch_api
from protocol.messages import metadata as metadata_api
from protocol.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from protocol.messages.metadata import MetadataRequest, MetadataResponse, RequestedTopic
from protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)

_ACKS_ALL = -1
_CONSUMER = -1
_READ_UNCOMMITTED = 0
_NO_SESSION = (0, -1)
_UNKNOWN = -1


def metadata_request(names: Iterable[str] = (), topic_ids: Iterable[bytes] = ()) -> GeneratedRequest:
    """Return a request for the brokers, and for topics by name and topic id. Never creates a topic."""
    topics = [RequestedTopic(NO_TOPIC_ID, name) for name in names]
    topics += [RequestedTopic(topic_id, None) for topic_id in topic_ids]
    return GeneratedRequest(metadata_api, MetadataRequest(topics, False, False))


def read_metadata(response: MetadataResponse) -> ClusterMetadata:
    return ClusterMetadata(
        response.cluster_id or "",
        {broker.node_id: (broker.host, broker.port) for broker in response.brokers},
        [
            TopicMetadata(
                topic.error_code,
                topic.name,
                topic.topic_id,
                [
                    PartitionMetadata(
                        partition.partition_index,
                        partition.leader_id,
                        partition.leader_epoch,
                        tuple(partition.replica_nodes),
                    )
                    for partition in topic.partitions
                ],
            )
            for topic in response.topics
        ],
    )


def produce_message(topic_id: bytes, batches: Sequence[tuple[int, bytes]], timeout_ms: int) -> ProduceRequest:
    """Return a request that appends one batch to each of these partitions, acks=all."""
    partitions = [PartitionProduceData(partition, batch) for partition, batch in batches]
    return ProduceRequest(None, _ACKS_ALL, timeout_ms, [TopicProduceData(topic_id, partitions)])


def read_produce_response(response: ProduceResponse) -> dict[int, ProduceResult]:
    """Return the result of each batch, by partition."""
    return {
        partition.index: ProduceResult(partition.error_code, partition.base_offset)
        for topic in response.responses
        for partition in topic.partition_responses
    }


def fetch_request(
    topic: MergedTopicMetadata, positions: Mapping[int, int], bytes_max: int, max_wait_ms: int
) -> GeneratedRequest:
    """Return a fetch request. Brokers reject it if they lead with another leader epoch (KIP-320)."""
    known = topic.partitions
    partitions = [
        FetchPartition(
            partition,
            known[partition].leader_epoch if partition in known else NO_LEADER_EPOCH,
            position,
            _UNKNOWN,
            _UNKNOWN,
            bytes_max,
        )
        for partition, position in positions.items()
    ]
    message = FetchRequest(
        _CONSUMER,
        max_wait_ms,
        1 if max_wait_ms else 0,
        bytes_max,
        _READ_UNCOMMITTED,
        *_NO_SESSION,
        [FetchTopic(topic.topic_id, partitions)],
        [],
        "",
    )
    return GeneratedRequest(fetch_api, message)


def read_fetch_response(response: FetchResponse, positions: Mapping[int, int]) -> dict[int, FetchResult]:
    """Return the results by partition. An error of the whole response applies to each partition."""
    if response.error_code != ErrorCode.NONE:
        return {partition: FetchResult(response.error_code, -1, b"") for partition in positions}
    return {
        partition.partition_index: FetchResult(
            partition.error_code, partition.log_start_offset, partition.records or b""
        )
        for topic in response.responses
        for partition in topic.partitions
    }
