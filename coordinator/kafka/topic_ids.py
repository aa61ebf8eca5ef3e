"""Metadata by topic id: version 12 of the API (KIP-516)."""

from aiokafka.protocol.types import Boolean, CompactArray, Int16, Int32

from coordinator.kafka.apis import TEXT, Api, ApiRequest, Uuid, struct_array_type

NO_TOPIC_ID = bytes(16)

_METADATA = Api(
    *("Metadata", 3, 12),
    request=[
        ("topics", struct_array_type(("topic_id", Uuid), ("name", TEXT))),
        ("allow_auto_topic_creation", Boolean),
        ("include_topic_authorized_operations", Boolean),
    ],
    response=[
        ("throttle_time_ms", Int32),
        ("brokers", struct_array_type(("node_id", Int32), ("host", TEXT), ("port", Int32), ("rack", TEXT))),
        ("cluster_id", TEXT),
        ("controller_id", Int32),
        (
            "topics",
            struct_array_type(
                ("error_code", Int16),
                ("name", TEXT),
                ("topic_id", Uuid),
                ("is_internal", Boolean),
                (
                    "partitions",
                    struct_array_type(
                        ("error_code", Int16),
                        ("partition_index", Int32),
                        ("leader_id", Int32),
                        ("leader_epoch", Int32),
                        ("replica_nodes", CompactArray(Int32)),
                        ("isr_nodes", CompactArray(Int32)),
                        ("offline_replicas", CompactArray(Int32)),
                    ),
                ),
                ("topic_authorized_operations", Int32),
            ),
        ),
    ],
)


def topics_request(topics: list[tuple[bytes, str | None]]) -> ApiRequest:
    """Ask for topics, each a pair of topic id and name of which one is given. Never creates any."""
    return _METADATA.request([(*topic, {}) for topic in topics], False, False)
