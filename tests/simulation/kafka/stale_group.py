"""Simulate a disconnected group coordinator that does not know that another broker coordinates the group.

The disconnected broker continues with the group in its memory: heartbeats of members that reach the broker
succeed. The writes of this broker to the group's partition fail, so it distributes no new assignment.
"""

from collections.abc import Mapping

from coordinator.cluster.kafka.group_results import DescribeResult, JoinResult, SyncResult
from protocol.errors import ErrorCode
from tests.kafka_in_memory.group_coordinator import STABLE, GroupCoordinator
from tests.simulation.loop import SimLoop


class StaleGroup:
    """The view of members that still reach the old coordinator of a `GroupCoordinator`."""

    def __init__(self, group: GroupCoordinator, node: int, loop: SimLoop) -> None:
        self.node = node
        self.generation = group.generation
        self._loop = loop
        self._session_s = group.session_s
        self._is_stable = group.state == STABLE
        self._described = group.describe()
        self._heard_s = dict.fromkeys(group.members, loop.time())

    def heartbeat(self, generation: int, member_id: str, instance_id: str = "") -> int:
        """Return NONE to a member of the current generation until the session of another member expires."""
        if member_id not in self._heard_s:
            return ErrorCode.UNKNOWN_MEMBER_ID
        self._heard_s[member_id] = self._loop.time()
        if generation != self.generation:
            return ErrorCode.ILLEGAL_GENERATION
        self._expire_session()
        return ErrorCode.NONE if self._is_stable else ErrorCode.REBALANCE_IN_PROGRESS

    def _expire_session(self) -> None:
        oldest_s = self._loop.time() - self._session_s
        for member_id in [each for each, heard_s in self._heard_s.items() if heard_s < oldest_s]:
            del self._heard_s[member_id]
            self._is_stable = False
            self._described = DescribeResult(ErrorCode.NONE)

    def join(self, member_id: str, metadata: bytes, instance_id: str = "") -> JoinResult:
        """Let a known member join the next generation, which gets no assignment."""
        if member_id not in self._heard_s:
            return JoinResult(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        self.generation += 1
        self._is_stable = True
        self._described = DescribeResult(ErrorCode.NONE)
        return JoinResult(ErrorCode.NONE, self.generation, member_id, member_id, {member_id: metadata})

    def sync(
        self, generation: int, member_id: str, assignments: Mapping[str, bytes], instance_id: str = ""
    ) -> SyncResult:
        """Fail, because the assignment cannot be stored."""
        return SyncResult(ErrorCode.COORDINATOR_NOT_AVAILABLE)

    def describe(self) -> DescribeResult:
        """Return the members and assignments from before the disconnection, until the group rebalances."""
        return self._described

    def leave(self, member_id: str) -> int:
        """Remove a member."""
        self._heard_s.pop(member_id, None)
        return ErrorCode.NONE
