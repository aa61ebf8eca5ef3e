"""Answer requests about share groups and topic ids, as the coordinator of the groups."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from coordinator.cluster.kafka.share_group_types import EMPTY
from protocol.errors import ErrorCode
from protocol.messages import delete_share_group_offsets as delete_api
from protocol.messages import describe_share_group_offsets as offsets_api
from protocol.messages import list_groups as list_api
from protocol.messages import share_group_describe as describe_api

# Deletes the state of a topic of a group through the share coordinator, and returns the error code.
DeleteState = Callable[[str, str], Awaitable[int]]

_CLIENT = ("client", "/127.0.0.1")


class ShareGroups:
    """The share groups and the topics of a cluster. The name of a topic is its topic id in hexadecimal.

    Every topic exists, and so does every group that is not in `deleted`. A group has a member that subscribes
    to all topics, unless it is in `empty`. While `loading` is set, the coordinators load their groups.
    """

    def __init__(self, delete_state: DeleteState) -> None:
        self.deleted: set[str] = set()
        self.empty: set[str] = set()
        self.loading = False
        self._topics: set[str] = set()
        self._delete_state = delete_state
        self._apis: dict[int, Callable[[Any, Callable[[str], bool]], Any]] = {
            list_api.API_KEY: self._list,
            describe_api.API_KEY: self._describe,
            offsets_api.API_KEY: self._describe_offsets,
            delete_api.API_KEY: self._delete_offsets,
        }

    def topic_name(self, topic_id: bytes) -> str:
        """Return the name of a topic."""
        name = topic_id.hex()
        self._topics.add(name)
        return name

    def serve(self, api_key: int, message: Any, coordinates: Callable[[str], bool]) -> Any:
        """Return the response, or its future, of a broker that coordinates some of the groups."""
        return self._apis[api_key](message, coordinates)

    def _error(self, group: str, coordinates: Callable[[str], bool]) -> int:
        if not coordinates(group):
            return ErrorCode.NOT_COORDINATOR
        if self.loading:
            return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        return ErrorCode.GROUP_ID_NOT_FOUND if group in self.deleted else ErrorCode.NONE

    def _list(self, message: Any, coordinates: Callable[[str], bool]) -> Any:
        return list_api.ListGroupsResponse(0, ErrorCode.NONE, [])

    def _describe(self, message: Any, coordinates: Callable[[str], bool]) -> Any:
        described = []
        for group in message.group_ids:
            assignment = describe_api.Assignment([])
            member = describe_api.Member("member", None, 1, *_CLIENT, sorted(self._topics), assignment)
            state, members = (EMPTY, []) if group in self.empty else ("Stable", [member])
            epoch = 1 + (group in self.empty)
            code = self._error(group, coordinates)
            described.append(
                describe_api.DescribedGroup(code, None, group, state, epoch, epoch, "simple", members, 0)
            )
        return describe_api.ShareGroupDescribeResponse(0, described)

    def _describe_offsets(self, message: Any, coordinates: Callable[[str], bool]) -> Any:
        groups = [
            offsets_api.DescribedGroup(each.group_id, [], self._error(each.group_id, coordinates), None)
            for each in message.groups
        ]
        return offsets_api.DescribeShareGroupOffsetsResponse(0, groups)

    def _delete_offsets(self, message: Any, coordinates: Callable[[str], bool]) -> Any:
        group = message.group_id
        code = self._error(group, coordinates)
        if code == ErrorCode.NONE and group not in self.empty:
            code = ErrorCode.NON_EMPTY_GROUP
        if code != ErrorCode.NONE:
            return delete_api.DeleteShareGroupOffsetsResponse(0, code, None, [])
        return asyncio.ensure_future(self._delete_states(group, [each.topic_name for each in message.topics]))

    async def _delete_states(self, group: str, topics: list[str]) -> Any:
        results = [
            delete_api.TopicResult(topic, bytes.fromhex(topic), await self._delete_state(group, topic), None)
            for topic in topics
        ]
        return delete_api.DeleteShareGroupOffsetsResponse(0, ErrorCode.NONE, None, results)
