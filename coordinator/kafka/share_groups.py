"""Share groups as the group coordinators of a cluster know them, and the offsets that they show for them.

ListGroups and DescribeShareGroupOffsets are asked of every broker: each answers for the groups that it
coordinates.  aiokafka has no classes for these versions; the types that they are made of are its own.
"""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from aiokafka.protocol.api import Request, RequestStruct, Response
from aiokafka.protocol.types import CompactArray, CompactString, Int16, Int32, Int64, Schema, TaggedFields

from coordinator.errors import LogUnavailable
from coordinator.kafka import cluster as kafka
from coordinator.kafka.cluster import NoAnswer
from coordinator.kafka.connections import METADATA_LANE, Connections
from coordinator.kafka.security import Security
from coordinator.kafka.topic_ids import Uuid

_SHARE = "share"
_LIST_GROUPS, _DESCRIBE_SHARE_GROUP_OFFSETS = 16, 90
_TEXT = CompactString("utf-8")

# Groups that are asked about in one request.
_GROUPS_MAX = 200


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


class _GroupsRequest(Request[ListGroupsRequestV5]):  # type: ignore[misc]
    API_KEY = _LIST_GROUPS

    def build(self, request_struct_class: type[ListGroupsRequestV5]) -> Any:
        return request_struct_class([], [_SHARE], {})


class _OffsetsRequest(Request[ShareGroupOffsetsRequestV0]):  # type: ignore[misc]
    API_KEY = _DESCRIBE_SHARE_GROUP_OFFSETS

    def __init__(self, groups: Sequence[str]) -> None:
        self._groups = groups

    def build(self, request_struct_class: type[ShareGroupOffsetsRequestV0]) -> Any:
        return request_struct_class([(group, None, {}) for group in self._groups], {})


class ShownOffset(NamedTuple):
    """A share-partition that its group takes for initialised; start offset -1: nobody has read it yet."""

    group_id: str
    topic_id: bytes
    partition: int
    start_offset: int


class ShareGroups:
    """Asks the cluster behind bootstrap servers, "host:port,host:port". Made and used on one event loop."""

    def __init__(
        self, bootstrap_servers: str, *, security: Security | None = None, request_timeout_s: float = 10.0
    ) -> None:
        """Prepare; nothing is connected. Raises ConfigError for TLS files that cannot be used."""
        self._connections = Connections(
            bootstrap_servers,
            None,
            security=security,
            client_id="share-coordinator-view",
            request_timeout_s=request_timeout_s,
        )

    async def names(self) -> set[str]:
        """Return all share groups. Raises LogUnavailable if a broker does not answer, and Unsupported."""
        found: set[str] = set()
        for response in await self._ask_all(_GroupsRequest()):
            if response.error_code != kafka.NONE:
                raise LogUnavailable(f"groups cannot be listed: Kafka's error {response.error_code}")
            found |= {group for group, *_ in response.groups}
        return found

    async def offsets(self, groups: Iterable[str]) -> list[ShownOffset]:
        """Return the share-partitions that these groups take for initialised.

        Those of which the coordinator answered with an error are left out.  Raises as `names`.
        """
        found: list[ShownOffset] = []
        names = sorted(groups)
        for at in range(0, len(names), _GROUPS_MAX):
            for response in await self._ask_all(_OffsetsRequest(names[at : at + _GROUPS_MAX])):
                for group, topics, code, *_ in response.groups:
                    if code != kafka.NONE:
                        continue
                    found += [
                        ShownOffset(group, topic_id, partition, start_offset)
                        for _, topic_id, partitions, *_ in topics
                        for partition, start_offset, _, error_code, *_ in partitions
                        if error_code == kafka.NONE
                    ]
        return found

    async def close(self) -> None:
        """Close all connections."""
        await self._connections.close()

    async def _ask_all(self, request: Any) -> list[Any]:
        if not self._connections.nodes():
            await self._connections.refresh()
        try:
            return [
                await self._connections.ask(node, METADATA_LANE, request)
                for node in self._connections.nodes()
            ]
        except NoAnswer as error:
            raise LogUnavailable(str(error)) from error
