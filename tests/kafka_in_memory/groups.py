"""Answer requests to the group coordinator of a group with the classic protocol."""

from typing import Any

from coordinator.cluster.kafka.group_results import (
    PROTOCOL_NAME,
    PROTOCOL_TYPE,
    STABLE,
    DescribeResult,
    JoinResult,
    SyncResult,
)
from protocol.errors import ErrorCode
from protocol.messages.heartbeat import HeartbeatResponse
from tests.kafka_in_memory.frames import Request, encode_response

_JOIN, _HEARTBEAT, _LEAVE, _SYNC, _DESCRIBE = 11, 12, 13, 14, 15
GROUP_APIS = (_JOIN, _HEARTBEAT, _LEAVE, _SYNC, _DESCRIBE)


def serve_group_request(request: Request, group: Any, error: int) -> Any:
    """Return the result of a group request, or a future of the result.

    `group` has the methods of `GroupCoordinator`. `group` is None if the broker does not coordinate the
    group. If `error` is not NONE, the request fails with this error.
    """
    key, message = request.api_key, request.message
    if group is None and error == ErrorCode.NONE:
        error = ErrorCode.NOT_COORDINATOR
    if error != ErrorCode.NONE:
        return {_JOIN: JoinResult, _SYNC: SyncResult, _DESCRIBE: DescribeResult}.get(key, int)(error)
    if key == _JOIN:
        ((_, member_metadata),) = message.group_protocols
        return group.join(message.member_id, member_metadata, message.group_instance_id or "")
    if key == _SYNC:
        instance_id, assignments = message.group_instance_id or "", dict(message.group_assignment)
        return group.sync(message.generation_id, message.member_id, assignments, instance_id)
    if key == _HEARTBEAT:
        return group.heartbeat(message.generation_id, message.member_id, message.group_instance_id or "")
    return group.leave(message.member_id) if key == _LEAVE else group.describe()


def encode_result(request: Request, result: Any) -> bytes:
    if isinstance(result, JoinResult):
        code, generation, member_id, leader_id, members = result
        described = [(name, None, member_metadata) for name, member_metadata in members.items()]
        return encode_response(request, 0, code, generation, PROTOCOL_NAME, leader_id, member_id, described)
    if isinstance(result, DescribeResult):
        described = [("", "", "", member_metadata, assigned) for member_metadata, assigned in result.members]
        (group_id,) = request.message.groups
        # The product uses the members only if the group is stable.
        state = STABLE if described else ""
        group = (result.error_code, group_id, state, PROTOCOL_TYPE, PROTOCOL_NAME, described)
        return encode_response(request, 0, [group])
    if isinstance(result, SyncResult):
        return encode_response(request, 0, *result)
    if request.api_key == _HEARTBEAT:
        return encode_response(request, HeartbeatResponse(0, result))
    return encode_response(request, 0, result)
