"""Requests about share groups, in the versions of Kafka 4.1 to 4.4.

Most of these requests go to the group's coordinator. Since version 4, FindCoordinator returns the
coordinators of many groups at once (KIP-699).
"""

from collections.abc import Sequence

from coordinator.cluster.kafka.generated_requests import GeneratedRequest
from protocol.messages import delete_share_group_offsets as delete_api
from protocol.messages import describe_share_group_offsets as describe_offsets_api
from protocol.messages import find_coordinator as find_api
from protocol.messages import list_groups as list_api
from protocol.messages import share_group_describe as describe_api

_SHARE = "share"
_GROUP_KEY = 0
_FIND_COORDINATOR_VERSION = 4


def list_groups_request() -> GeneratedRequest:
    """Return a request for the share groups that a broker coordinates."""
    return GeneratedRequest(list_api, list_api.ListGroupsRequest([], [_SHARE]))


def describe_offsets_request(groups: Sequence[str]) -> GeneratedRequest:
    """Return a request for the start offsets of groups in all their topics."""
    described = [describe_offsets_api.RequestedGroup(group, None) for group in groups]
    message = describe_offsets_api.DescribeShareGroupOffsetsRequest(described)
    return GeneratedRequest(describe_offsets_api, message)


def find_coordinators_request(groups: Sequence[str]) -> GeneratedRequest:
    """Return a request to any broker for the coordinators of groups."""
    message = find_api.FindCoordinatorRequest(key_type=_GROUP_KEY, coordinator_keys=list(groups))
    return GeneratedRequest(find_api, message, _FIND_COORDINATOR_VERSION)


def describe_groups_request(groups: Sequence[str]) -> GeneratedRequest:
    """Return a request to a coordinator for groups and their members."""
    return GeneratedRequest(describe_api, describe_api.ShareGroupDescribeRequest(list(groups), False))


def delete_offsets_request(group: str, topics: Sequence[str]) -> GeneratedRequest:
    """Return a request that deletes all offsets of a group in some topics."""
    deleted = [delete_api.RequestedTopic(topic) for topic in topics]
    return GeneratedRequest(delete_api, delete_api.DeleteShareGroupOffsetsRequest(group, deleted))
