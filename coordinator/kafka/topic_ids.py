"""Metadata by topic id: version 12 of the API (KIP-516), which aiokafka has no classes for.

The only request that is not the library's own; the types that it is made of are.
"""

from io import BytesIO
from typing import Any

from aiokafka.protocol.abstract import AbstractType
from aiokafka.protocol.api import Request, RequestStruct, Response
from aiokafka.protocol.types import (
    Boolean,
    CompactArray,
    CompactString,
    Int16,
    Int32,
    Schema,
    TaggedFields,
)

NO_TOPIC_ID = bytes(16)

_METADATA = 3
_UUID_BYTES = 16
_TEXT = CompactString("utf-8")


class Uuid(AbstractType[bytes]):  # type: ignore[misc]
    """16 bytes as they are."""

    @classmethod
    def encode(cls, value: bytes) -> bytes:
        """Return the bytes."""
        assert len(value) == _UUID_BYTES
        return value

    @classmethod
    def decode(cls, data: BytesIO) -> bytes:
        """Read 16 bytes. Raises ValueError if there are fewer."""
        value = data.read(_UUID_BYTES)
        if len(value) != _UUID_BYTES:
            raise ValueError("buffer underrun in a uuid")
        return value


class MetadataResponseV12(Response):  # type: ignore[misc]
    """Brokers, and topics with ids and leaders."""

    API_KEY = _METADATA
    API_VERSION = 12
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        (
            "brokers",
            CompactArray(
                ("node_id", Int32), ("host", _TEXT), ("port", Int32), ("rack", _TEXT), ("tags", TaggedFields)
            ),
        ),
        ("cluster_id", _TEXT),
        ("controller_id", Int32),
        (
            "topics",
            CompactArray(
                ("error_code", Int16),
                ("name", _TEXT),
                ("topic_id", Uuid),
                ("is_internal", Boolean),
                (
                    "partitions",
                    CompactArray(
                        ("error_code", Int16),
                        ("partition_index", Int32),
                        ("leader_id", Int32),
                        ("leader_epoch", Int32),
                        ("replica_nodes", CompactArray(Int32)),
                        ("isr_nodes", CompactArray(Int32)),
                        ("offline_replicas", CompactArray(Int32)),
                        ("tags", TaggedFields),
                    ),
                ),
                ("topic_authorized_operations", Int32),
                ("tags", TaggedFields),
            ),
        ),
        ("tags", TaggedFields),
    )


class MetadataRequestV12(RequestStruct):  # type: ignore[misc]
    """Topics by id, or by name with a null id."""

    FLEXIBLE_VERSION = True
    API_KEY = _METADATA
    API_VERSION = 12
    RESPONSE_TYPE = MetadataResponseV12
    SCHEMA = Schema(
        ("topics", CompactArray(("topic_id", Uuid), ("name", _TEXT), ("tags", TaggedFields))),
        ("allow_auto_topic_creation", Boolean),
        ("include_topic_authorized_operations", Boolean),
        ("tags", TaggedFields),
    )


class TopicsRequest(Request[MetadataRequestV12]):  # type: ignore[misc]
    """Asks for topics, each a pair of topic id and name of which one is given. Never creates any."""

    API_KEY = _METADATA

    def __init__(self, topics: list[tuple[bytes, str | None]]) -> None:
        self._topics = topics

    def build(self, request_struct_class: type[MetadataRequestV12]) -> Any:
        """Make the request in the one version that there is."""
        return request_struct_class([(*topic, {}) for topic in self._topics], False, False, {})
