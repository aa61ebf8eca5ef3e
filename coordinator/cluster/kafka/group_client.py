"""Send requests of the group protocol to the coordinator of a Kafka group through aiokafka."""

import asyncio
from collections.abc import Callable, Collection, Mapping

from aiokafka.protocol.admin import DescribeGroupsRequest
from aiokafka.protocol.coordination import FindCoordinatorRequest
from aiokafka.protocol.group import JoinGroupRequest, LeaveGroupRequest, SyncGroupRequest

from coordinator.client import ClientSecurity
from coordinator.cluster.kafka.connections import Connections
from coordinator.cluster.kafka.generated_requests import GeneratedRequest
from coordinator.cluster.kafka.group_results import (
    PROTOCOL_NAME,
    PROTOCOL_TYPE,
    STABLE,
    DescribeResult,
    FindCoordinatorResult,
    JoinResult,
    MemberDescription,
    MetadataSnapshot,
    SyncResult,
)
from coordinator.cluster.kafka.topic_requests import metadata_request
from coordinator.errors import LogError
from protocol.errors import ErrorCode
from protocol.messages import heartbeat as heartbeat_api
from protocol.messages.heartbeat import HeartbeatRequest

_GROUP_KEY = 0
# Maximum wait for partition leaders. Partition leaders affect only the placement of shards, so an assignment
# does not wait longer.
_LEADERS_WITHIN_S = 1.0

# A broker delays a join, and later requests on the connection, until the other members have joined.
_JOIN_CHANNEL = "join"
_HEARTBEAT_CHANNEL = "heartbeat"
_PROBE_CHANNEL = "probe"
_DESCRIBE_CHANNEL = "describe"
# Added to the rebalance timeout for a join, as in Kafka's own clients.
_JOIN_MARGIN_S = 5.0


class KafkaGroupClient:
    """The requests of one process to the coordinator of one group. Raises LogError if no broker answers.

    A client stores no state of the membership; the caller keeps the member id and the generation. A join may
    take as long as a rebalance; other requests do not wait for it. A cancelled request does not delay later
    requests. `instance_id` is Kafka's group.instance.id, "" for a member without one.

    `bootstrap_servers` is "host:port,host:port". Used on one event loop.
    """

    def __init__(
        self,
        bootstrap_servers: str,
        group_id: str,
        topic: str,
        *,
        security: ClientSecurity | None = None,
        session_timeout_s: float = 10.0,
        rebalance_timeout_s: float = 10.0,
        request_timeout_s: float = 3.0,
    ) -> None:
        """Create the object without connecting. Raises ConfigError for TLS files that cannot be used.

        If a broker does not answer within `request_timeout_s`, another one is used. Therefore, this timeout
        should be a small part of the session timeout.
        """
        self._group_id = group_id
        self._session_timeout_ms = round(session_timeout_s * 1000)
        self._rebalance_timeout_ms = round(rebalance_timeout_s * 1000)
        self._request_timeout_s = request_timeout_s
        self._connections = Connections(
            bootstrap_servers,
            topic,
            security=security,
            client_id="share-coordinator",
            request_timeout_s=request_timeout_s,
            channel_timeouts_s={_JOIN_CHANNEL: rebalance_timeout_s + _JOIN_MARGIN_S},
        )

    async def find_coordinator(self) -> FindCoordinatorResult:
        """Refresh the metadata, and find the group coordinator through one of the brokers."""
        await self._connections.refresh(ask_others=True)
        found = await self._connections.send_to_any_broker(FindCoordinatorRequest(self._group_id, _GROUP_KEY))
        if found.error_code == ErrorCode.NONE:
            self._connections.add_address(found.coordinator_id, found.host, found.port)
        return FindCoordinatorResult(found.error_code, found.coordinator_id)

    async def join(self, node: int, member_id: str, metadata: bytes, instance_id: str = "") -> JoinResult:
        """Join the next generation.

        With an empty member id, Kafka assigns a member id. With an instance id, the member replaces the
        previous member with this id.
        """
        request = JoinGroupRequest(
            self._group_id,
            self._session_timeout_ms,
            self._rebalance_timeout_ms,
            member_id,
            instance_id or None,
            PROTOCOL_TYPE,
            [(PROTOCOL_NAME, metadata)],
        )
        try:
            answer = await self._connections.send(node, _JOIN_CHANNEL, request)
        except asyncio.CancelledError:
            self._connections.close_connection(node, _JOIN_CHANNEL)
            raise
        # Newer versions of JoinGroup insert the instance id between member id and metadata. It is not needed.
        members = {member: metadata for member, *_, metadata in answer.members}
        return JoinResult(
            answer.error_code, answer.generation_id, answer.member_id, answer.leader_id, members
        )

    async def sync(
        self,
        node: int,
        generation: int,
        member_id: str,
        assignments: Mapping[str, bytes],
        instance_id: str = "",
    ) -> SyncResult:
        """Send, as the leader, the assignments of all members; return this member's assignment."""
        request = SyncGroupRequest(
            self._group_id, generation, member_id, instance_id or None, list(assignments.items())
        )
        try:
            answer = await self._connections.send(node, _JOIN_CHANNEL, request)
        except asyncio.CancelledError:
            self._connections.close_connection(node, _JOIN_CHANNEL)
            raise
        return SyncResult(answer.error_code, answer.member_assignment or b"")

    async def heartbeat(self, node: int, generation: int, member_id: str, instance_id: str = "") -> int:
        """Send a heartbeat; return Kafka's error code.

        If another process has replaced a static member, Kafka rejects its heartbeat (KIP-345).
        """
        message = HeartbeatRequest(self._group_id, generation, member_id, instance_id or None)
        request = GeneratedRequest(heartbeat_api, message)
        answer = await self._connections.send(node, _HEARTBEAT_CHANNEL, request)
        code: int = answer.error_code
        return code

    async def leave(self, node: int, member_id: str) -> int:
        """Leave the group; return Kafka's error code."""
        request = LeaveGroupRequest(self._group_id, member_id)
        answer = await self._connections.send(node, _HEARTBEAT_CHANNEL, request)
        code: int = answer.error_code
        return code

    async def describe(self, node: int) -> DescribeResult:
        """Return the metadata and the assignments of all members."""
        answer = await self._connections.send(
            node, _DESCRIBE_CHANNEL, DescribeGroupsRequest([self._group_id])
        )
        (group,) = answer.groups
        if group[1] != self._group_id or group[0] != ErrorCode.NONE or group[2] != STABLE:
            return DescribeResult(group[0])
        return DescribeResult(
            ErrorCode.NONE, [MemberDescription(member[-2], member[-1]) for member in group[5]]
        )

    async def leaders_by_partition(self) -> Mapping[int, int]:
        """Return the known partition leaders, refreshed if that takes at most a second. Never raises."""
        try:
            async with asyncio.timeout(_LEADERS_WITHIN_S):
                await self._connections.refresh()
        except (LogError, TimeoutError):
            pass
        return self._list_known_leaders()

    async def probe_leaders(
        self, choose: Callable[[Mapping[int, int]], Collection[int]]
    ) -> MetadataSnapshot | None:
        """Get the partition leaders from a broker, then probe the brokers that `choose` returns.

        Brokers that are not in the metadata are not probed. Returns None if no broker answers. Never raises.
        """
        try:
            await self._connections.refresh()
        except LogError:
            return None
        leaders = self._list_known_leaders()
        asked = sorted(set(choose(leaders)) & set(self._connections.node_ids()))
        answers = await asyncio.gather(*(self._probe_node(node) for node in asked))
        return MetadataSnapshot(leaders, {node: why for node, why in zip(asked, answers, strict=True) if why})

    def _list_known_leaders(self) -> dict[int, int]:
        partitions = self._connections.metadata.topic.partitions
        return {partition: known.leader for partition, known in partitions.items()}

    async def _probe_node(self, node: int) -> str:
        """Send a small request to a broker; return why no response came in time, "" if one did."""
        try:
            async with asyncio.timeout(self._request_timeout_s):
                await self._connections.send(node, _PROBE_CHANNEL, metadata_request())
        except LogError as error:
            return str(error)
        except TimeoutError:
            self._connections.close_connection(node, _PROBE_CHANNEL)
            address = self._connections.address(node)
            return f"broker {node} at {address}: no answer within {self._request_timeout_s:g} s"
        return ""

    async def close(self) -> None:
        await self._connections.close()
