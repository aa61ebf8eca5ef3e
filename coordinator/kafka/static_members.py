"""The heartbeat of a member with group.instance.id: version 3 (KIP-345), which aiokafka does not have."""

from typing import Any

from aiokafka.protocol.api import Request, RequestStruct, Response
from aiokafka.protocol.types import Int16, Int32, Schema, String

_HEARTBEAT = 12
_TEXT = String("utf-8")


class HeartbeatResponseV3(Response):  # type: ignore[misc]
    """An error code."""

    API_KEY = _HEARTBEAT
    API_VERSION = 3
    SCHEMA = Schema(("throttle_time_ms", Int32), ("error_code", Int16))


class HeartbeatRequestV3(RequestStruct):  # type: ignore[misc]
    """Who lives."""

    API_KEY = _HEARTBEAT
    API_VERSION = 3
    RESPONSE_TYPE = HeartbeatResponseV3
    SCHEMA = Schema(
        ("group_id", _TEXT), ("generation_id", Int32), ("member_id", _TEXT), ("group_instance_id", _TEXT)
    )


class StaticHeartbeat(Request[HeartbeatRequestV3]):  # type: ignore[misc]
    """Says that a member lives, and asks whether it still is the one of its group.instance.id."""

    API_KEY = _HEARTBEAT

    def __init__(self, group_id: str, generation: int, member_id: str, group_instance_id: str) -> None:
        self._fields = (group_id, generation, member_id, group_instance_id)

    def build(self, request_struct_class: type[HeartbeatRequestV3]) -> Any:
        """Make the request in the one version that there is."""
        return request_struct_class(*self._fields)
