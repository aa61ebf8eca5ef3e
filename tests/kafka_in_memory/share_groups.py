"""Answer requests about share groups and topic ids by the rules of Kafka's group coordinator."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from coordinator.cluster.kafka.share_group_types import EMPTY, ChangeResult
from protocol.errors import ErrorCode
from protocol.messages import delete_share_group_offsets as delete_api
from protocol.messages import describe_share_group_offsets as offsets_api
from protocol.messages import list_groups as list_api
from protocol.messages import share_group_describe as describe_api

# A function that deletes the state of a share group and topic through the share coordinator, and returns the
# error code.
DeleteState = Callable[[str, str], Awaitable[int]]
# A function that returns whether the broker that received the request coordinates a share group.
IsCoordinator = Callable[[str], bool]

DELETE_GROUPS = 42
PARTITIONS = 3
_CLIENT = ("client", "/127.0.0.1")
_NOT_EMPTY = ChangeResult(ErrorCode.NON_EMPTY_GROUP, "The group is not empty.")


def topic_id(topic: str) -> bytes:
    return topic.encode().ljust(16, b"-")


class ShareGroup:
    """A share group, as its group coordinator stores it.

    `members` has for each member the set of topics that it subscribes to. `topics` maps each topic that is
    initialised in this share group to the error code of its offsets.
    """

    def __init__(self, *topics: str) -> None:
        self.members: list[frozenset[str]] = []
        self.group_epoch = 2
        self.topics: dict[str, int] = dict.fromkeys(topics, ErrorCode.NONE)

    def join(self, *topics: str) -> None:
        """Add a member."""
        self.members.append(frozenset(topics))
        self.group_epoch += 1

    def leave(self) -> None:
        """Remove the newest member."""
        self.members.pop()
        self.group_epoch += 1


class ShareGroups:
    """The share groups and the topics of a cluster, by name."""

    def __init__(self, delete_state: DeleteState) -> None:
        self.groups: dict[str, ShareGroup] = {}
        self.topics: set[str] = set()
        # Topics that clients may not describe.
        self.hidden_topics: set[str] = set()
        # The topics that a broker does not know yet, by node id.
        self.unknown_topics: dict[int, set[str]] = {}
        # While this is true, all coordinators answer that they are loading their share groups.
        self.loading = False
        # By share group: the error with which all requests about it fail.
        self.errors: dict[str, int] = {}
        # The share groups in all DescribeGroups requests, in the order of arrival.
        self.described: list[str] = []
        self.deletions: list[tuple[str, tuple[str, ...]]] = []
        self.deleted_groups: list[str] = []
        # By share group: the result with which a deletion of its offsets is refused.
        self.refusals: dict[str, ChangeResult] = {}
        self._delete_state = delete_state
        self._apis: Mapping[int, Callable[[Any, IsCoordinator], Any]] = {
            list_api.API_KEY: self._list_groups,
            describe_api.API_KEY: self._describe_groups,
            offsets_api.API_KEY: self._describe_offsets,
            delete_api.API_KEY: self._delete_offsets,
            DELETE_GROUPS: self._delete_groups,
        }

    def find(self, group: str) -> ShareGroup | None:
        """Return a share group, or None if it does not exist."""
        return self.groups.get(group)

    def find_topic(self, wanted: bytes, node: int) -> tuple[int, str | None]:
        """Return the error code and the name with which a broker describes a topic id."""
        known = self.topics - self.unknown_topics.get(node, set())
        name = next((name for name in known | self.hidden_topics if topic_id(name) == wanted), None)
        if name in self.hidden_topics:
            return ErrorCode.TOPIC_AUTHORIZATION_FAILED, None
        return (ErrorCode.UNKNOWN_TOPIC_ID if name is None else ErrorCode.NONE), name

    def serve(self, api_key: int, message: Any, coordinates: IsCoordinator) -> Any:
        """Return the response of a broker that coordinates some of the share groups, or a future of it."""
        return self._apis[api_key](message, coordinates)

    def _coordinator_error(self, group: str, coordinates: IsCoordinator) -> int:
        if not coordinates(group):
            return ErrorCode.NOT_COORDINATOR
        if self.loading:
            return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        if self.find(group) is None:
            return ErrorCode.GROUP_ID_NOT_FOUND
        return self.errors.get(group, ErrorCode.NONE)

    def _list_groups(self, message: Any, coordinates: IsCoordinator) -> Any:
        listed = [
            list_api.ListedGroup(group, "share", _group_state(self.groups[group]), "share")
            for group in self.groups
            if coordinates(group)
        ]
        return list_api.ListGroupsResponse(0, ErrorCode.NONE, listed)

    def _describe_groups(self, message: Any, coordinates: IsCoordinator) -> Any:
        self.described += message.group_ids
        described = []
        for name in message.group_ids:
            code, group = self._coordinator_error(name, coordinates), self.find(name) or ShareGroup()
            members = [
                describe_api.Member("", None, 1, *_CLIENT, sorted(topics), describe_api.Assignment([]))
                for topics in group.members
            ]
            state, epoch = _group_state(group), group.group_epoch
            described.append(
                describe_api.DescribedGroup(code, None, name, state, epoch, epoch, "simple", members, 0)
            )
        return describe_api.ShareGroupDescribeResponse(0, described)

    def _describe_offsets(self, message: Any, coordinates: IsCoordinator) -> Any:
        groups = []
        for requested in message.groups:
            name = requested.group_id
            code, group = self._coordinator_error(name, coordinates), self.find(name) or ShareGroup()
            if code == ErrorCode.GROUP_ID_NOT_FOUND:
                # Kafka describes the offsets of an unknown group as it does for a group without offsets.
                code = ErrorCode.NONE
            topics = [
                offsets_api.DescribedTopic(
                    topic,
                    topic_id(topic),
                    [
                        offsets_api.DescribedPartition(number, -1 if error else 0, 0, error, None)
                        for number in range(PARTITIONS)
                    ],
                )
                for topic, error in group.topics.items()
                if topic not in self.hidden_topics and not code
            ]
            groups.append(offsets_api.DescribedGroup(name, topics, code, None))
        return offsets_api.DescribeShareGroupOffsetsResponse(0, groups)

    def _deletion_refusal(self, name: str, coordinates: IsCoordinator) -> ChangeResult | None:
        """Return the error with which the coordinator refuses to delete a share group or its offsets."""
        if code := self._coordinator_error(name, coordinates):
            return ChangeResult(code)
        group = self.find(name)
        return _NOT_EMPTY if group is not None and group.members else None

    def _delete_offsets(self, message: Any, coordinates: IsCoordinator) -> Any:
        name, topics = message.group_id, [each.topic_name for each in message.topics]
        self.deletions.append((name, tuple(topics)))
        refusal = self.refusals.get(name) or self._deletion_refusal(name, coordinates)
        if refusal is not None:
            return delete_api.DeleteShareGroupOffsetsResponse(0, *refusal, [])
        return asyncio.ensure_future(self._delete_topics(name, topics))

    async def _delete_topics(self, name: str, topics: list[str]) -> Any:
        codes = {topic: await self._delete_topic(name, topic) for topic in topics}
        if self.find(name) is None:
            # If the group was deleted meanwhile, the group coordinator lists no topics of the group.
            codes = {}
        results = [delete_api.TopicResult(topic, bytes(16), code, None) for topic, code in codes.items()]
        return delete_api.DeleteShareGroupOffsetsResponse(0, ErrorCode.NONE, None, results)

    async def _delete_topic(self, name: str, topic: str) -> int:
        group = self.find(name)
        if topic in self.hidden_topics:
            return ErrorCode.TOPIC_AUTHORIZATION_FAILED
        if group is None or topic not in group.topics:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        code = await self._delete_state(name, topic)
        if code == ErrorCode.NONE:
            group.topics.pop(topic, None)
        return code

    def _delete_groups(self, message: Any, coordinates: IsCoordinator) -> Any:
        self.deleted_groups += message.groups_names
        return asyncio.ensure_future(self._delete_groups_with_state(message.groups_names, coordinates))

    async def _delete_groups_with_state(
        self, names: list[str], coordinates: IsCoordinator
    ) -> tuple[int, list[tuple[str, int]]]:
        results = []
        for name in names:
            refusal = self._deletion_refusal(name, coordinates)
            if refusal is None:
                for topic in self.groups[name].topics:
                    await self._delete_state(name, topic)
                del self.groups[name]
            results.append((name, ErrorCode.NONE if refusal is None else refusal.error_code))
        return 0, results


class ShareGroupsWithoutCreation(ShareGroups):
    """Share groups that need not be created. The name of a topic is its id in hexadecimal.

    Every topic exists, and every share group that is not in `deleted`. A group has a member that subscribes
    to all topics, unless it is in `empty`. The groups are not in responses that list groups or describe
    offsets.
    """

    def __init__(self, delete_state: DeleteState) -> None:
        super().__init__(delete_state)
        self.deleted: set[str] = set()
        self.empty: set[str] = set()

    def find(self, group: str) -> ShareGroup | None:
        """Return a share group unless it was deleted."""
        if group in self.deleted:
            return None
        found = ShareGroup()
        found.join(*self.topics)
        if group in self.empty:
            found.leave()
        return found

    def find_topic(self, wanted: bytes, node: int) -> tuple[int, str | None]:
        self.topics.add(wanted.hex())
        return ErrorCode.NONE, wanted.hex()

    async def _delete_topic(self, name: str, topic: str) -> int:
        return await self._delete_state(name, topic)


def _group_state(group: ShareGroup) -> str:
    return "Stable" if group.members else EMPTY
