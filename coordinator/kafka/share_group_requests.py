"""Requests about share groups, in the versions of Kafka 4.1 to 4.4.

aiokafka has no classes for them; the types that they are made of are its own.  Most of them go to the broker
that coordinates the group, which FindCoordinator tells for many groups at once since version 4 (KIP-699).
"""

from collections.abc import Mapping, Sequence
from typing import Any

from aiokafka.protocol.api import Request, RequestStruct, Response
from aiokafka.protocol.types import (
    Boolean,
    CompactArray,
    CompactString,
    Int8,
    Int16,
    Int32,
    Int64,
    Schema,
    TaggedFields,
)

from coordinator.kafka.topic_ids import Uuid

_SHARE = "share"
_GROUP_KEY = 0
_FIND_COORDINATOR, _LIST_GROUPS, _DESCRIBE_SHARE_GROUP = 10, 16, 77
_DESCRIBE_SHARE_GROUP_OFFSETS, _ALTER_SHARE_GROUP_OFFSETS, _DELETE_SHARE_GROUP_OFFSETS = 90, 91, 92
_TEXT = CompactString("utf-8")


class ListGroupsResponseV5(Response):  # type: ignore[misc]
    """Groups of one broker."""

    API_KEY = _LIST_GROUPS
    API_VERSION = 5
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        ("error_code", Int16),
        (
            "groups",
            CompactArray(
                ("group_id", _TEXT),
                ("protocol_type", _TEXT),
                ("group_state", _TEXT),
                ("group_type", _TEXT),
                ("tags", TaggedFields),
            ),
        ),
        ("tags", TaggedFields),
    )


class ListGroupsRequestV5(RequestStruct):  # type: ignore[misc]
    """Groups of some types."""

    FLEXIBLE_VERSION = True
    API_KEY = _LIST_GROUPS
    API_VERSION = 5
    RESPONSE_TYPE = ListGroupsResponseV5
    SCHEMA = Schema(
        ("states_filter", CompactArray(_TEXT)), ("types_filter", CompactArray(_TEXT)), ("tags", TaggedFields)
    )


class ShareGroupOffsetsResponseV0(Response):  # type: ignore[misc]
    """Start offsets of all initialised share-partitions of some groups."""

    API_KEY = _DESCRIBE_SHARE_GROUP_OFFSETS
    API_VERSION = 0
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        (
            "groups",
            CompactArray(
                ("group_id", _TEXT),
                (
                    "topics",
                    CompactArray(
                        ("topic_name", _TEXT),
                        ("topic_id", Uuid),
                        (
                            "partitions",
                            CompactArray(
                                ("partition_index", Int32),
                                ("start_offset", Int64),
                                ("leader_epoch", Int32),
                                ("error_code", Int16),
                                ("error_message", _TEXT),
                                ("tags", TaggedFields),
                            ),
                        ),
                        ("tags", TaggedFields),
                    ),
                ),
                ("error_code", Int16),
                ("error_message", _TEXT),
                ("tags", TaggedFields),
            ),
        ),
        ("tags", TaggedFields),
    )


class ShareGroupOffsetsRequestV0(RequestStruct):  # type: ignore[misc]
    """Groups, each with its topics, or null for all of them."""

    FLEXIBLE_VERSION = True
    API_KEY = _DESCRIBE_SHARE_GROUP_OFFSETS
    API_VERSION = 0
    RESPONSE_TYPE = ShareGroupOffsetsResponseV0
    SCHEMA = Schema(
        (
            "groups",
            CompactArray(
                ("group_id", _TEXT),
                (
                    "topics",
                    CompactArray(
                        ("topic_name", _TEXT), ("partitions", CompactArray(Int32)), ("tags", TaggedFields)
                    ),
                ),
                ("tags", TaggedFields),
            ),
        ),
        ("tags", TaggedFields),
    )


class ShareGroupsRequest(Request[ListGroupsRequestV5]):  # type: ignore[misc]
    """Asks a broker for the share groups that it coordinates."""

    API_KEY = _LIST_GROUPS

    def build(self, request_struct_class: type[ListGroupsRequestV5]) -> Any:
        """Make the request in the one version that there is."""
        return request_struct_class([], [_SHARE], {})


class ShareGroupOffsetsRequest(Request[ShareGroupOffsetsRequestV0]):  # type: ignore[misc]
    """Asks for the start offsets that groups have."""

    API_KEY = _DESCRIBE_SHARE_GROUP_OFFSETS

    def __init__(self, groups: Sequence[str]) -> None:
        self._groups = groups

    def build(self, request_struct_class: type[ShareGroupOffsetsRequestV0]) -> Any:
        """Make the request in the one version that there is."""
        return request_struct_class([(group, None, {}) for group in self._groups], {})


class CoordinatorsResponseV4(Response):  # type: ignore[misc]
    """Where the coordinators of some groups are."""

    API_KEY = _FIND_COORDINATOR
    API_VERSION = 4
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        (
            "coordinators",
            CompactArray(
                ("key", _TEXT),
                ("node_id", Int32),
                ("host", _TEXT),
                ("port", Int32),
                ("error_code", Int16),
                ("error_message", _TEXT),
                ("tags", TaggedFields),
            ),
        ),
        ("tags", TaggedFields),
    )


class CoordinatorsRequestV4(RequestStruct):  # type: ignore[misc]
    """Keys of one type."""

    FLEXIBLE_VERSION = True
    API_KEY = _FIND_COORDINATOR
    API_VERSION = 4
    RESPONSE_TYPE = CoordinatorsResponseV4
    SCHEMA = Schema(("key_type", Int8), ("coordinator_keys", CompactArray(_TEXT)), ("tags", TaggedFields))


class CoordinatorsRequest(Request[CoordinatorsRequestV4]):  # type: ignore[misc]
    """Asks any broker for the coordinators of groups."""

    API_KEY = _FIND_COORDINATOR

    def __init__(self, groups: Sequence[str]) -> None:
        self._groups = groups

    def build(self, request_struct_class: type[CoordinatorsRequestV4]) -> Any:
        """Make the request in the one version that there is."""
        return request_struct_class(_GROUP_KEY, list(self._groups), {})


class ShareGroupDescribeResponseV1(Response):  # type: ignore[misc]
    """Share groups with their members."""

    API_KEY = _DESCRIBE_SHARE_GROUP
    API_VERSION = 1
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        (
            "groups",
            CompactArray(
                ("error_code", Int16),
                ("error_message", _TEXT),
                ("group_id", _TEXT),
                ("group_state", _TEXT),
                ("group_epoch", Int32),
                ("assignment_epoch", Int32),
                ("assignor_name", _TEXT),
                (
                    "members",
                    CompactArray(
                        ("member_id", _TEXT),
                        ("rack_id", _TEXT),
                        ("member_epoch", Int32),
                        ("client_id", _TEXT),
                        ("client_host", _TEXT),
                        ("subscribed_topic_names", CompactArray(_TEXT)),
                        (
                            "assignment",
                            Schema(
                                (
                                    "topic_partitions",
                                    CompactArray(
                                        ("topic_id", Uuid),
                                        ("topic_name", _TEXT),
                                        ("partitions", CompactArray(Int32)),
                                        ("tags", TaggedFields),
                                    ),
                                ),
                                ("tags", TaggedFields),
                            ),
                        ),
                        ("tags", TaggedFields),
                    ),
                ),
                ("authorized_operations", Int32),
                ("tags", TaggedFields),
            ),
        ),
        ("tags", TaggedFields),
    )


class ShareGroupDescribeRequestV1(RequestStruct):  # type: ignore[misc]
    """Groups by name."""

    FLEXIBLE_VERSION = True
    API_KEY = _DESCRIBE_SHARE_GROUP
    API_VERSION = 1
    RESPONSE_TYPE = ShareGroupDescribeResponseV1
    SCHEMA = Schema(
        ("group_ids", CompactArray(_TEXT)),
        ("include_authorized_operations", Boolean),
        ("tags", TaggedFields),
    )


class ShareGroupDescribeRequest(Request[ShareGroupDescribeRequestV1]):  # type: ignore[misc]
    """Asks a coordinator for its groups and their members."""

    API_KEY = _DESCRIBE_SHARE_GROUP

    def __init__(self, groups: Sequence[str]) -> None:
        self._groups = groups

    def build(self, request_struct_class: type[ShareGroupDescribeRequestV1]) -> Any:
        """Make the request in the one version that there is."""
        return request_struct_class(list(self._groups), False, {})


class AlterShareGroupOffsetsResponseV0(Response):  # type: ignore[misc]
    """What became of new start offsets, or why there is none of it at all."""

    API_KEY = _ALTER_SHARE_GROUP_OFFSETS
    API_VERSION = 0
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        ("error_code", Int16),
        ("error_message", _TEXT),
        (
            "responses",
            CompactArray(
                ("topic_name", _TEXT),
                ("topic_id", Uuid),
                (
                    "partitions",
                    CompactArray(
                        ("partition_index", Int32),
                        ("error_code", Int16),
                        ("error_message", _TEXT),
                        ("tags", TaggedFields),
                    ),
                ),
                ("tags", TaggedFields),
            ),
        ),
        ("tags", TaggedFields),
    )


class AlterShareGroupOffsetsRequestV0(RequestStruct):  # type: ignore[misc]
    """New start offsets of one group."""

    FLEXIBLE_VERSION = True
    API_KEY = _ALTER_SHARE_GROUP_OFFSETS
    API_VERSION = 0
    RESPONSE_TYPE = AlterShareGroupOffsetsResponseV0
    SCHEMA = Schema(
        ("group_id", _TEXT),
        (
            "topics",
            CompactArray(
                ("topic_name", _TEXT),
                (
                    "partitions",
                    CompactArray(("partition_index", Int32), ("start_offset", Int64), ("tags", TaggedFields)),
                ),
                ("tags", TaggedFields),
            ),
        ),
        ("tags", TaggedFields),
    )


class AlterShareGroupOffsetsRequest(Request[AlterShareGroupOffsetsRequestV0]):  # type: ignore[misc]
    """Sets start offsets, by topic name and partition."""

    API_KEY = _ALTER_SHARE_GROUP_OFFSETS

    def __init__(self, group: str, offsets: Mapping[str, Mapping[int, int]]) -> None:
        self._group = group
        self._offsets = offsets

    def build(self, request_struct_class: type[AlterShareGroupOffsetsRequestV0]) -> Any:
        """Make the request in the one version that there is."""
        topics: list[Any] = [
            (topic, [(partition, offset, {}) for partition, offset in partitions.items()], {})
            for topic, partitions in self._offsets.items()
        ]
        return request_struct_class(self._group, topics, {})


class DeleteShareGroupOffsetsResponseV0(Response):  # type: ignore[misc]
    """What became of topics, or why there is none of it at all."""

    API_KEY = _DELETE_SHARE_GROUP_OFFSETS
    API_VERSION = 0
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        ("error_code", Int16),
        ("error_message", _TEXT),
        (
            "responses",
            CompactArray(
                ("topic_name", _TEXT),
                ("topic_id", Uuid),
                ("error_code", Int16),
                ("error_message", _TEXT),
                ("tags", TaggedFields),
            ),
        ),
        ("tags", TaggedFields),
    )


class DeleteShareGroupOffsetsRequestV0(RequestStruct):  # type: ignore[misc]
    """Topics of one group."""

    FLEXIBLE_VERSION = True
    API_KEY = _DELETE_SHARE_GROUP_OFFSETS
    API_VERSION = 0
    RESPONSE_TYPE = DeleteShareGroupOffsetsResponseV0
    SCHEMA = Schema(
        ("group_id", _TEXT),
        ("topics", CompactArray(("topic_name", _TEXT), ("tags", TaggedFields))),
        ("tags", TaggedFields),
    )


class DeleteShareGroupOffsetsRequest(Request[DeleteShareGroupOffsetsRequestV0]):  # type: ignore[misc]
    """Deletes all that a group has of some topics."""

    API_KEY = _DELETE_SHARE_GROUP_OFFSETS

    def __init__(self, group: str, topics: Sequence[str]) -> None:
        self._group = group
        self._topics = topics

    def build(self, request_struct_class: type[DeleteShareGroupOffsetsRequestV0]) -> Any:
        """Make the request in the one version that there is."""
        return request_struct_class(self._group, [(topic, {}) for topic in self._topics], {})
