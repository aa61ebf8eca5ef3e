"""Decode requests and encode responses as a broker does, in the API versions that the product sends."""

from collections.abc import Mapping
from types import ModuleType
from typing import Any, NamedTuple

from aiokafka.protocol.admin import (
    ApiVersionRequest_v0,
    CreateTopicsRequest_v1,
    DeleteGroupsRequest_v1,
    DeleteRecordsRequest_v1,
    DescribeConfigsRequest_v0,
    DescribeGroupsRequest_v3,
)
from aiokafka.protocol.coordination import FindCoordinatorRequest_v1
from aiokafka.protocol.group import JoinGroupRequest_v5, LeaveGroupRequest_v1, SyncGroupRequest_v3
from aiokafka.protocol.offset import OffsetRequest_v3
from aiokafka.protocol.transaction import InitProducerIdRequest_v0

from protocol.messages import (
    delete_share_group_offsets,
    describe_share_group_offsets,
    fetch,
    find_coordinator,
    heartbeat,
    list_groups,
    metadata,
    produce,
    request_header,
    share_group_describe,
)

_GENERATED: dict[int, ModuleType] = {
    module.API_KEY: module
    for module in (
        delete_share_group_offsets,
        describe_share_group_offsets,
        fetch,
        find_coordinator,
        heartbeat,
        list_groups,
        metadata,
        produce,
        share_group_describe,
    )
}
_AIOKAFKA: dict[tuple[int, int], Any] = {
    (request.API_KEY, request.API_VERSION): request
    for request in (
        ApiVersionRequest_v0,
        CreateTopicsRequest_v1,
        DeleteGroupsRequest_v1,
        DeleteRecordsRequest_v1,
        DescribeConfigsRequest_v0,
        DescribeGroupsRequest_v3,
        FindCoordinatorRequest_v1,
        InitProducerIdRequest_v0,
        JoinGroupRequest_v5,
        LeaveGroupRequest_v1,
        OffsetRequest_v3,
        SyncGroupRequest_v3,
    )
}
_LENGTH_BYTES = 4


class Request(NamedTuple):
    """A request of a client. `message` has the type of the generated module or of aiokafka."""

    api_key: int
    version: int
    correlation_id: bytes
    message: Any


def api_versions_response(newest: Mapping[int, int]) -> bytes:
    """Return the body of the response to an ApiVersions request.

    `newest` maps API keys to the newest supported version.
    """
    versions: dict[int, tuple[int, int, int]] = {}
    generated = [(key, module.MAX_VERSION) for key, module in _GENERATED.items()]
    for key, version in sorted([*_AIOKAFKA, *generated]):
        if version <= newest.get(key, version):
            versions[key] = (key, versions.get(key, (key, version))[1], version)
    encoded: bytes = ApiVersionRequest_v0.RESPONSE_TYPE(0, list(versions.values())).encode()
    return encoded


def api_key(frame: bytes) -> int:
    """Return the API key of a request that begins with its length prefix."""
    return int.from_bytes(frame[_LENGTH_BYTES : _LENGTH_BYTES + 2])


def decode_request(frame: bytes) -> Request:
    start = _LENGTH_BYTES
    assert int.from_bytes(frame[:start]) == len(frame) - start, "the frame is one request"
    key, version = int.from_bytes(frame[start : start + 2]), int.from_bytes(frame[start + 2 : start + 4])
    request_class = _AIOKAFKA.get((key, version))
    header, offset = request_header.decode(frame, start, 2 if request_class is None else 1)
    if request_class is None:
        message = _GENERATED[key].decode_request(frame, offset, version)
    else:
        message = request_class.decode(frame[offset:])
    return Request(key, version, header.correlation_id.to_bytes(4), message)


def encode_response(request: Request, *response: Any) -> bytes:
    """Encode a response (a message, or the fields of an aiokafka response), with its length prefix."""
    request_class = _AIOKAFKA.get((request.api_key, request.version))
    if request_class is None:
        # In these versions, the response header ends with tagged fields.
        body = b"\0" + _GENERATED[request.api_key].encode_response(*response, request.version)
    else:
        body = request_class.RESPONSE_TYPE(*response).encode()
    return frame_response(request, body)


def frame_response(request: Request, body: bytes) -> bytes:
    """Return a response body with length prefix and correlation id."""
    return (len(request.correlation_id) + len(body)).to_bytes(4) + request.correlation_id + body
