"""The connection of one replica to the group in memory, with faults and delays."""

import asyncio
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING

from coordinator.cluster.kafka.cluster import NoResponse
from coordinator.cluster.kafka.group import (
    DescribeResult,
    FindCoordinatorResult,
    JoinResult,
    MetadataSnapshot,
    SyncResult,
)
from protocol.errors import ErrorCode

if TYPE_CHECKING:
    from tests.unit.ownership.fake_group import FakeGroup

TRAVEL_S = 0.001


class FakeGroupClient:
    """A `GroupClient` of one process.

    With `cut`, group requests and probes fail. `unreachable_brokers` fail only in probes. `reply_s` is the
    delay of responses. While `joins_pass` or `syncs_pass` is cleared, these responses do not arrive.
    """

    def __init__(self, group: "FakeGroup") -> None:
        self.group = group
        self.cut = False
        self.unreachable_brokers: set[int] = set()
        self.reply_s = TRAVEL_S
        self.joins_pass, self.syncs_pass = asyncio.Event(), asyncio.Event()
        self.joins_pass.set()
        self.syncs_pass.set()
        self.closed = False

    async def _begin_request(self, api: str, node: int) -> int:
        """Send a request to a broker. Return the injected error, or NOT_COORDINATOR if another broker
        coordinates the group.
        """
        await asyncio.sleep(TRAVEL_S)
        self.group.requests.append(api)
        if self.cut or node in self.group.down:
            raise NoResponse(f"broker {node} is not there", sent=False)
        errors = self.group.errors.get(api)
        if errors:
            return errors.pop(0)
        return ErrorCode.NONE if node == self.group.node else ErrorCode.NOT_COORDINATOR

    async def _await_response(self, node: int) -> None:
        await asyncio.sleep(self.reply_s)
        if self.cut or node in self.group.down:
            raise NoResponse(f"broker {node} did not answer", sent=True)

    async def find_coordinator(self) -> FindCoordinatorResult:
        up = self.group.nodes - self.group.down
        await asyncio.sleep(TRAVEL_S)
        self.group.requests.append("find")
        if self.cut or not up:
            raise NoResponse("no broker can be reached", sent=False)
        errors = self.group.errors.get("find")
        return (
            FindCoordinatorResult(errors.pop(0), -1)
            if errors
            else FindCoordinatorResult(ErrorCode.NONE, self.group.node)
        )

    async def join(self, node: int, member_id: str, metadata: bytes, instance_id: str) -> JoinResult:
        code = await self._begin_request("join", node)
        if code != ErrorCode.NONE:
            return JoinResult(code)
        answer = self.group.join(member_id, metadata, instance_id)
        joined = answer if isinstance(answer, JoinResult) else await asyncio.shield(answer)
        await self.joins_pass.wait()
        await self._await_response(node)
        return joined

    async def sync(
        self, node: int, generation: int, member_id: str, assignments: Mapping[str, bytes], instance_id: str
    ) -> SyncResult:
        code = await self._begin_request("sync", node)
        if code != ErrorCode.NONE:
            return SyncResult(code)
        answer = self.group.sync(generation, member_id, assignments, instance_id)
        synced = answer if isinstance(answer, SyncResult) else await asyncio.shield(answer)
        await self.syncs_pass.wait()
        await self._await_response(node)
        return synced

    async def heartbeat(self, node: int, generation: int, member_id: str, instance_id: str) -> int:
        code = await self._begin_request("heartbeat", node)
        if code == ErrorCode.NONE:
            code = self.group.heartbeat(generation, member_id, instance_id)
        await self._await_response(node)
        return code

    async def leave(self, node: int, member_id: str) -> int:
        code = await self._begin_request("leave", node)
        if code == ErrorCode.NONE:
            code = self.group.leave(member_id)
        await self._await_response(node)
        return code

    async def describe(self, node: int) -> DescribeResult:
        code = await self._begin_request("describe", node)
        described = DescribeResult(code) if code != ErrorCode.NONE else self.group.describe()
        await self._await_response(node)
        return described

    async def leaders_by_partition(self) -> Mapping[int, int]:
        self.group.metadata_requests += 1
        return dict(self.group.partition_leaders)

    async def probe_leaders(
        self, choose: Callable[[Mapping[int, int]], Collection[int]]
    ) -> MetadataSnapshot | None:
        await asyncio.sleep(TRAVEL_S)
        self.group.metadata_requests += 1
        # Until Kafka detects that a broker is down, the metadata contains this broker as a leader.
        away = self.unreachable_brokers | self.group.down
        if self.cut or self.group.nodes <= away:
            return None
        leaders = dict(self.group.partition_leaders)
        probed = set(choose(leaders))
        self.group.probes.append(len(probed))
        return MetadataSnapshot(leaders, {node: f"broker {node} is not there" for node in probed & away})

    async def close(self) -> None:
        self.closed = True
