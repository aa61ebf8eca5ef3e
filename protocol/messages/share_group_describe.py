"""ShareGroupDescribe (API key 77), version 1: request and response."""

from msgspec import Struct

from protocol.fields import Int16, Int32, Uuid
from protocol.message_codec import api_codecs

API_KEY = 77
MIN_VERSION = 1
MAX_VERSION = 1
FLEXIBLE_VERSION = 1


class ShareGroupDescribeRequest(Struct, gc=False):
    group_ids: list[str]
    include_authorized_operations: bool


class TopicPartitions(Struct, gc=False):
    topic_id: Uuid
    topic_name: str
    partitions: list[Int32]


class Assignment(Struct, gc=False):
    topic_partitions: list[TopicPartitions]


class Member(Struct, gc=False):
    member_id: str
    rack_id: str | None
    member_epoch: Int32
    client_id: str
    client_host: str
    subscribed_topic_names: list[str]
    assignment: Assignment


class DescribedGroup(Struct, gc=False):
    error_code: Int16
    error_message: str | None
    group_id: str
    group_state: str
    group_epoch: Int32
    assignment_epoch: Int32
    assignor_name: str
    members: list[Member]
    authorized_operations: Int32


class ShareGroupDescribeResponse(Struct, gc=False):
    throttle_time_ms: Int32
    groups: list[DescribedGroup]


decode_request, encode_request, decode_response, encode_response = api_codecs(
    ShareGroupDescribeRequest, ShareGroupDescribeResponse, MIN_VERSION, MAX_VERSION, FLEXIBLE_VERSION
)
