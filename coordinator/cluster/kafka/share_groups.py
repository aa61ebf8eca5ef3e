"""List, describe and delete share groups and their offsets, through Kafka's group coordinators.

ListGroups and DescribeShareGroupOffsets go to every broker; each answers for the groups that it coordinates.
All other requests go to the coordinator of the group.
"""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from aiokafka.protocol.admin import DeleteGroupsRequest

from coordinator.client import ClientSecurity
from coordinator.cluster.kafka.broker_results import NoResponse
from coordinator.cluster.kafka.connections import METADATA_CHANNEL, Connections
from coordinator.cluster.kafka.generated_requests import GeneratedRequest
from coordinator.cluster.kafka.share_group_types import (
    ChangeResult,
    GroupDescription,
    GroupOffset,
    ResolvedTopicIds,
)
from coordinator.cluster.kafka.topic_requests import metadata_request, read_metadata
from coordinator.errors import LogUnavailable
from protocol.errors import ErrorCode, kafka_error
from protocol.messages import delete_share_group_offsets as delete_api
from protocol.messages import describe_share_group_offsets as describe_offsets_api
from protocol.messages import find_coordinator as find_api
from protocol.messages import list_groups as list_api
from protocol.messages import share_group_describe as describe_api

_SHARE = "share"
_GROUP_KEY = 0
# Since version 4, FindCoordinator returns the coordinators of many groups at once (KIP-699).
_FIND_COORDINATOR_VERSION = 4
# Maximum number of groups or topic ids in a request.
_GROUPS_MAX = 200
_TOPICS_MAX = 1_000

# Maximum number of attempts to reach a group coordinator, and the first pause between them. After a broker
# failure, another broker becomes the coordinator within seconds.
_ATTEMPTS_MAX = 6
_FIRST_PAUSE_S = 0.1

# Deletions have a separate channel, so that they do not delay queries.
_CHANGE_CHANNEL = "changes"
# Brokers answer a deletion after the share coordinator has deleted the state, which may take several
# attempts. Therefore, deletions have the longer timeout of Kafka's admin client.
_CHANGE_TIMEOUT_S = 60.0

_DELETED_MEANWHILE = ChangeResult(ErrorCode.GROUP_ID_NOT_FOUND, "the group was deleted meanwhile")
# An internal error code, which Kafka does not use.
_HAS_OFFSETS = -1
_MOVED = (
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
)


def _make_describe_offsets_request(groups: Sequence[str]) -> GeneratedRequest:
    described = [describe_offsets_api.RequestedGroup(group, None) for group in groups]
    message = describe_offsets_api.DescribeShareGroupOffsetsRequest(described)
    return GeneratedRequest(describe_offsets_api, message)


def _make_find_coordinators_request(groups: Sequence[str]) -> GeneratedRequest:
    message = find_api.FindCoordinatorRequest(key_type=_GROUP_KEY, coordinator_keys=list(groups))
    return GeneratedRequest(find_api, message, _FIND_COORDINATOR_VERSION)


def _make_describe_groups_request(groups: Sequence[str]) -> GeneratedRequest:
    return GeneratedRequest(describe_api, describe_api.ShareGroupDescribeRequest(list(groups), False))


def _make_delete_offsets_request(group: str, topics: Sequence[str]) -> GeneratedRequest:
    deleted = [delete_api.RequestedTopic(topic) for topic in topics]
    return GeneratedRequest(delete_api, delete_api.DeleteShareGroupOffsetsRequest(group, deleted))


class ShareGroups:
    """A client of the share groups of a cluster. Created and used on one event loop.

    `bootstrap_servers` is "host:port,host:port".
    """

    def __init__(
        self,
        bootstrap_servers: str,
        *,
        security: ClientSecurity | None = None,
        client_id: str = "share-coordinator-view",
        request_timeout_s: float = 10.0,
    ) -> None:
        """Create the object without connecting. Raises ConfigError for TLS files that cannot be used."""
        self._connections = Connections(
            bootstrap_servers,
            None,
            security=security,
            client_id=client_id,
            request_timeout_s=request_timeout_s,
            channel_timeouts_s={_CHANGE_CHANNEL: _CHANGE_TIMEOUT_S},
        )
        self._coordinators: dict[str, int] = {}

    async def close(self) -> None:
        await self._connections.close()

    # Queries.

    async def list_groups(self) -> set[str]:
        """Return all share groups. Raises LogUnavailable if a broker does not answer, and UnsupportedApi."""
        found: set[str] = set()
        for response in await self._send_to_all_brokers(
            GeneratedRequest(list_api, list_api.ListGroupsRequest([], [_SHARE]))
        ):
            if response.error_code != ErrorCode.NONE:
                raise LogUnavailable(f"groups cannot be listed: {kafka_error(response.error_code)}")
            found |= {group.group_id for group in response.groups}
        return found

    async def list_offsets(self, groups: Iterable[str]) -> list[GroupOffset]:
        """Return the share-partitions that these groups have initialised.

        Groups and share-partitions with an error are omitted. Raises like `list_groups`.
        """
        found: list[GroupOffset] = []
        names = sorted(groups)
        for at in range(0, len(names), _GROUPS_MAX):
            for response in await self._send_to_all_brokers(
                _make_describe_offsets_request(names[at : at + _GROUPS_MAX])
            ):
                found += [
                    GroupOffset(
                        group.group_id, topic.topic_id, partition.partition_index, partition.start_offset
                    )
                    for group in response.groups
                    if group.error_code == ErrorCode.NONE
                    for topic in group.topics
                    for partition in topic.partitions
                    if partition.error_code == ErrorCode.NONE
                ]
        return found

    async def groups_without_offsets(self, groups: Iterable[str]) -> set[str]:
        """Return the groups for which their coordinators report no offsets, including unknown groups.

        Groups with an error are not returned. Coordinators do not report topics that this client may not
        describe (ACL). Raises like `describe_groups`.
        """

        def read_results(response: Any) -> dict[str, ChangeResult]:
            return {
                group.group_id: ChangeResult(
                    group.error_code
                    if group.error_code != ErrorCode.NONE or not group.topics
                    else _HAS_OFFSETS
                )
                for group in response.groups
            }

        answers = await self._send_to_coordinators(groups, _make_describe_offsets_request, read_results)
        return {group for group, answer in answers.items() if answer.error_code == ErrorCode.NONE}

    async def describe_groups(self, groups: Iterable[str]) -> dict[str, GroupDescription]:
        """Return the description of each group by its coordinator (ShareGroupDescribe).

        If the coordinator cannot be found or does not answer, the error code is COORDINATOR_NOT_AVAILABLE and
        the other fields have no meaning. Raises LogUnavailable if no broker answers, and UnsupportedApi below
        Kafka 4.1.
        """

        def read_descriptions(response: Any) -> dict[str, GroupDescription]:
            return {group.group_id: _make_description(group) for group in response.groups}

        answers = await self._send_to_coordinators(groups, _make_describe_groups_request, read_descriptions)
        return {
            group: answer if isinstance(answer, GroupDescription) else GroupDescription(*answer)
            for group, answer in answers.items()
        }

    async def resolve_topic_ids(self, topic_ids: Sequence[bytes]) -> ResolvedTopicIds:
        """Ask one broker after the other until all topic ids are found.

        An id is missing only if all brokers answer that they do not know it. Raises LogUnavailable if no
        broker answers.
        """
        await self._connections.refresh()
        cluster_id = ""
        names: dict[bytes, str] = {}
        missing = set(topic_ids)
        is_anyone_silent = False
        for node in self._connections.node_ids():
            # If no topic ids are left, one request is still sent, because its response has the cluster id.
            wanted = sorted(missing)
            for at in range(0, max(len(wanted), 1), _TOPICS_MAX):
                request = metadata_request(topic_ids=wanted[at : at + _TOPICS_MAX])
                try:
                    response = await self._connections.send(node, METADATA_CHANNEL, request)
                except NoResponse:
                    is_anyone_silent = True
                    break
                metadata = read_metadata(response)
                cluster_id = metadata.cluster_id or cluster_id
                for topic in metadata.topics:
                    if topic.error_code != ErrorCode.UNKNOWN_TOPIC_ID:
                        missing.discard(topic.topic_id)
                    if topic.error_code == ErrorCode.NONE and topic.name is not None:
                        names[topic.topic_id] = topic.name
            if cluster_id and not missing:
                break
        return ResolvedTopicIds(cluster_id, names, frozenset() if is_anyone_silent else frozenset(missing))

    # Changes.

    async def delete_offsets(self, group: str, topics: Sequence[str]) -> dict[str, ChangeResult]:
        """Delete all offsets of a group in these topics (DeleteShareGroupOffsets); return results by name.

        The group coordinator first has the state deleted by the share coordinator, and then deletes its own
        metadata. The group coordinator refuses with NON_EMPTY_GROUP while the group has members. If the group
        itself is deleted in between, the response mentions no topic (Kafka's GroupMetadataManager). If no
        topic is mentioned, each result is GROUP_ID_NOT_FOUND. Raises like `describe_groups`.
        """

        def read_results(response: Any) -> dict[str, Any]:
            if response.error_code != ErrorCode.NONE:
                return {group: ChangeResult(response.error_code, response.error_message or "")}
            return {
                group: {
                    topic.topic_name: ChangeResult(topic.error_code, topic.error_message or "")
                    for topic in response.responses
                }
            }

        answers = await self._send_to_coordinators(
            [group], lambda _: _make_delete_offsets_request(group, topics), read_results, _CHANGE_CHANNEL
        )
        answer: ChangeResult | dict[str, ChangeResult] = answers[group]
        if isinstance(answer, ChangeResult):
            return dict.fromkeys(topics, answer)
        return dict.fromkeys(topics, _DELETED_MEANWHILE) | answer

    async def delete_groups(self, groups: Iterable[str]) -> dict[str, ChangeResult]:
        """Delete groups with all their offsets and state (DeleteGroups).

        The group coordinator refuses with NON_EMPTY_GROUP while a group has members. DeleteGroups deletes
        groups of any type. Raises like `describe_groups`.
        """

        def read_results(response: Any) -> dict[str, ChangeResult]:
            return {group: ChangeResult(code) for group, code, *_ in response.results}

        return await self._send_to_coordinators(groups, DeleteGroupsRequest, read_results, _CHANGE_CHANNEL)

    # Requests.

    async def _send_to_all_brokers(self, request: Any) -> list[Any]:
        try:
            # Refresh the list of brokers: a broker that was removed from the cluster would never answer.
            await self._connections.refresh()
            return [
                await self._connections.send(node, METADATA_CHANNEL, request)
                for node in self._connections.node_ids()
            ]
        except NoResponse as error:
            raise LogUnavailable(str(error)) from error

    async def _send_to_coordinators(
        self,
        groups: Iterable[str],
        request_for: Callable[[list[str]], Any],
        answers_in: Callable[[Any], dict[str, Any]],
        channel: str = METADATA_CHANNEL,
    ) -> dict[str, Any]:
        """Send requests to the coordinator of each group, until it answers or the attempts run out.

        An error is returned as a `ChangeResult`, or as a `GroupDescription` with an error code. If a deletion
        may be in progress, the request is not sent again.
        """
        waiting = sorted(set(groups))
        answers: dict[str, Any] = dict.fromkeys(
            waiting, ChangeResult(ErrorCode.COORDINATOR_NOT_AVAILABLE, "its coordinator was not found")
        )
        pause_s = _FIRST_PAUSE_S
        for attempt in range(_ATTEMPTS_MAX):
            if attempt:
                await asyncio.sleep(pause_s)
                pause_s *= 2
                await self._connections.refresh()
            silent: dict[int, ChangeResult] = {}
            doubtful: set[str] = set()
            for node, asked in await self._group_by_coordinator(waiting, answers):
                if node in silent:
                    # After one request timeout, the coordinator's other requests are not sent.
                    answers |= dict.fromkeys(asked, silent[node])
                    continue
                try:
                    response = await self._connections.send(node, channel, request_for(asked))
                except NoResponse as error:
                    silent[node] = ChangeResult(ErrorCode.COORDINATOR_NOT_AVAILABLE, str(error))
                    answers |= dict.fromkeys(asked, silent[node])
                    if error.sent and channel == _CHANGE_CHANNEL:
                        doubtful.update(asked)
                    continue
                answers |= {group: answer for group, answer in answers_in(response).items() if group in asked}
            waiting = [
                group for group in waiting if _coordinator_has_moved(answers[group]) and group not in doubtful
            ]
            if not waiting:
                break
            for group in waiting:
                self._coordinators.pop(group, None)
        return answers

    async def _group_by_coordinator(
        self, groups: Sequence[str], answers: dict[str, Any]
    ) -> list[tuple[int, list[str]]]:
        """Return pairs of a coordinator and the groups of one request to it.

        If a coordinator is not found, the error is stored in `answers`.
        """
        unknown = [group for group in groups if group not in self._coordinators]
        if unknown and not self._connections.node_ids():
            await self._connections.refresh()
        for at in range(0, len(unknown), _GROUPS_MAX):
            found = await self._connections.send_to_any_broker(
                _make_find_coordinators_request(unknown[at : at + _GROUPS_MAX])
            )
            for coordinator in found.coordinators:
                if coordinator.error_code == ErrorCode.NONE:
                    self._coordinators[coordinator.key] = coordinator.node_id
                    self._connections.add_address(coordinator.node_id, coordinator.host, coordinator.port)
                else:
                    answers[coordinator.key] = ChangeResult(
                        coordinator.error_code, coordinator.error_message or ""
                    )
        sorted_groups: defaultdict[int, list[str]] = defaultdict(list)
        for group in groups:
            if group in self._coordinators:
                sorted_groups[self._coordinators[group]].append(group)
        return [
            (node, asked[at : at + _GROUPS_MAX])
            for node, asked in sorted_groups.items()
            for at in range(0, len(asked), _GROUPS_MAX)
        ]


def _coordinator_has_moved(answer: Any) -> bool:
    return isinstance(answer, ChangeResult | GroupDescription) and answer.error_code in _MOVED


def _make_description(group: describe_api.DescribedGroup) -> GroupDescription:
    return GroupDescription(
        group.error_code,
        group.error_message or "",
        group.group_state,
        group.group_epoch,
        len(group.members),
        frozenset(topic for member in group.members for topic in member.subscribed_topic_names),
    )
