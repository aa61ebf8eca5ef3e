"""The heartbeat of a member with group.instance.id: version 3 (KIP-345)."""

from aiokafka.protocol.types import Int16, Int32, String

from coordinator.kafka.apis import Api, ApiRequest

_TEXT = String("utf-8")
_HEARTBEAT = Api(
    *("Heartbeat", 12, 3),
    request=[
        ("group_id", _TEXT),
        ("generation_id", Int32),
        ("member_id", _TEXT),
        ("group_instance_id", _TEXT),
    ],
    response=[("throttle_time_ms", Int32), ("error_code", Int16)],
    is_flexible=False,
)


def static_heartbeat(group_id: str, generation: int, member_id: str, group_instance_id: str) -> ApiRequest:
    """Say that a member lives, and ask whether it still is the one of its group.instance.id."""
    return _HEARTBEAT.request(group_id, generation, member_id, group_instance_id)
