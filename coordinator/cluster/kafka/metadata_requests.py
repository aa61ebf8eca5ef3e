"""Metadata requests, with topic ids and leader epochs (KIP-516, KIP-320)."""

from collections.abc import Iterable

from coordinator.cluster.kafka.generated_requests import GeneratedRequest
from coordinator.cluster.kafka.metadata import (
    NO_TOPIC_ID,
    ClusterMetadata,
    PartitionMetadata,
    TopicMetadata,
)
from protocol.messages import metadata as metadata_api
from protocol.messages.metadata import MetadataRequest, MetadataResponse, RequestedTopic


def metadata_request(names: Iterable[str] = (), topic_ids: Iterable[bytes] = ()) -> GeneratedRequest:
    """Return a request for the brokers, and for topics by name and topic id. Never creates a topic."""
    topics = [RequestedTopic(NO_TOPIC_ID, name) for name in names]
    topics += [RequestedTopic(topic_id, None) for topic_id in topic_ids]
    return GeneratedRequest(metadata_api, MetadataRequest(topics, False, False))


def read_metadata(response: MetadataResponse) -> ClusterMetadata:
    """Return the metadata in a response."""
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
