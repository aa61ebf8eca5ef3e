"""Requests about share groups, in the versions of Kafka 4.1 to 4.4.

Most of them go to the broker that coordinates the group, which FindCoordinator tells for many groups at once
since version 4 (KIP-699).
"""

from collections.abc import Mapping, Sequence
from typing import Any

from aiokafka.protocol.types import Boolean, CompactArray, Int8, Int16, Int32, Int64

from coordinator.kafka.apis import TEXT, Api, ApiRequest, Uuid, struct_array_type, struct_type

_SHARE = "share"
_GROUP_KEY = 0

_LIST_GROUPS = Api(
    *("ListGroups", 16, 5),
    request=[("states_filter", CompactArray(TEXT)), ("types_filter", CompactArray(TEXT))],
    response=[
        ("throttle_time_ms", Int32),
        ("error_code", Int16),
        (
            "groups",
            struct_array_type(
                ("group_id", TEXT),
                ("protocol_type", TEXT),
                ("group_state", TEXT),
                ("group_type", TEXT),
            ),
        ),
    ],
)

_DESCRIBE_OFFSETS = Api(
    *("DescribeShareGroupOffsets", 90, 0),
    request=[
        (
            "groups",
            struct_array_type(
                ("group_id", TEXT),
                ("topics", struct_array_type(("topic_name", TEXT), ("partitions", CompactArray(Int32)))),
            ),
        )
    ],
    response=[
        ("throttle_time_ms", Int32),
        (
            "groups",
            struct_array_type(
                ("group_id", TEXT),
                (
                    "topics",
                    struct_array_type(
                        ("topic_name", TEXT),
                        ("topic_id", Uuid),
                        (
                            "partitions",
                            struct_array_type(
                                ("partition_index", Int32),
                                ("start_offset", Int64),
                                ("leader_epoch", Int32),
                                ("error_code", Int16),
                                ("error_message", TEXT),
                            ),
                        ),
                    ),
                ),
                ("error_code", Int16),
                ("error_message", TEXT),
            ),
        ),
    ],
)

_FIND_COORDINATOR = Api(
    *("FindCoordinator", 10, 4),
    request=[("key_type", Int8), ("coordinator_keys", CompactArray(TEXT))],
    response=[
        ("throttle_time_ms", Int32),
        (
            "coordinators",
            struct_array_type(
                ("key", TEXT),
                ("node_id", Int32),
                ("host", TEXT),
                ("port", Int32),
                ("error_code", Int16),
                ("error_message", TEXT),
            ),
        ),
    ],
)

_ASSIGNMENT = struct_type(
    (
        "topic_partitions",
        struct_array_type(("topic_id", Uuid), ("topic_name", TEXT), ("partitions", CompactArray(Int32))),
    )
)
_DESCRIBE = Api(
    *("ShareGroupDescribe", 77, 1),
    request=[("group_ids", CompactArray(TEXT)), ("include_authorized_operations", Boolean)],
    response=[
        ("throttle_time_ms", Int32),
        (
            "groups",
            struct_array_type(
                ("error_code", Int16),
                ("error_message", TEXT),
                ("group_id", TEXT),
                ("group_state", TEXT),
                ("group_epoch", Int32),
                ("assignment_epoch", Int32),
                ("assignor_name", TEXT),
                (
                    "members",
                    struct_array_type(
                        ("member_id", TEXT),
                        ("rack_id", TEXT),
                        ("member_epoch", Int32),
                        ("client_id", TEXT),
                        ("client_host", TEXT),
                        ("subscribed_topic_names", CompactArray(TEXT)),
                        ("assignment", _ASSIGNMENT),
                    ),
                ),
                ("authorized_operations", Int32),
            ),
        ),
    ],
)

_ALTER_OFFSETS = Api(
    *("AlterShareGroupOffsets", 91, 0),
    request=[
        ("group_id", TEXT),
        (
            "topics",
            struct_array_type(
                ("topic_name", TEXT),
                ("partitions", struct_array_type(("partition_index", Int32), ("start_offset", Int64))),
            ),
        ),
    ],
    response=[
        ("throttle_time_ms", Int32),
        ("error_code", Int16),
        ("error_message", TEXT),
        (
            "responses",
            struct_array_type(
                ("topic_name", TEXT),
                ("topic_id", Uuid),
                (
                    "partitions",
                    struct_array_type(
                        ("partition_index", Int32), ("error_code", Int16), ("error_message", TEXT)
                    ),
                ),
            ),
        ),
    ],
)

_DELETE_OFFSETS = Api(
    *("DeleteShareGroupOffsets", 92, 0),
    request=[("group_id", TEXT), ("topics", struct_array_type(("topic_name", TEXT)))],
    response=[
        ("throttle_time_ms", Int32),
        ("error_code", Int16),
        ("error_message", TEXT),
        (
            "responses",
            struct_array_type(
                ("topic_name", TEXT),
                ("topic_id", Uuid),
                ("error_code", Int16),
                ("error_message", TEXT),
            ),
        ),
    ],
)


def list_share_groups() -> ApiRequest:
    """Ask a broker for the share groups that it coordinates."""
    return _LIST_GROUPS.request([], [_SHARE])


def describe_offsets(groups: Sequence[str]) -> ApiRequest:
    """Ask for the start offsets that groups have, of all their topics."""
    return _DESCRIBE_OFFSETS.request([(group, None, {}) for group in groups])


def find_coordinators(groups: Sequence[str]) -> ApiRequest:
    """Ask any broker for the coordinators of groups."""
    return _FIND_COORDINATOR.request(_GROUP_KEY, list(groups))


def describe(groups: Sequence[str]) -> ApiRequest:
    """Ask a coordinator for its groups and their members."""
    return _DESCRIBE.request(list(groups), False)


def alter_offsets(group: str, offsets: Mapping[str, Mapping[int, int]]) -> ApiRequest:
    """Set start offsets, by topic name and partition."""
    topics: list[Any] = [
        (topic, [(partition, offset, {}) for partition, offset in partitions.items()], {})
        for topic, partitions in offsets.items()
    ]
    return _ALTER_OFFSETS.request(group, topics)


def delete_offsets(group: str, topics: Sequence[str]) -> ApiRequest:
    """Delete all that a group has of some topics."""
    return _DELETE_OFFSETS.request(group, [(topic, {}) for topic in topics])
