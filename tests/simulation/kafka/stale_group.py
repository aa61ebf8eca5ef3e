"""A group coordinator that was cut off from the other brokers and does not know that another one leads.

It goes on with the group as it was in memory: members that reach it are told that they are members.  What it
would have to write to the group's partition fails, so it gives out no new assignment.
"""

from collections.abc import Mapping

from coordinator.kafka.group import Described, JoinResult, SyncResult
from protocol.errors import ErrorCode
from tests.simulation.loop import SimLoop
from tests.unit.ownership.fake_group import STABLE, FakeGroup


class StaleGroup:
    """The face of a `FakeGroup` towards members, from the moment of the cut on."""

    def __init__(self, group: FakeGroup, node: int, loop: SimLoop) -> None:
        self.node = node
        self.generation = group.generation
        self._loop = loop
        self._session_s = group.session_s
        self._is_stable = group.state == STABLE
        self._described = group.describe()
        self._heard_s = dict.fromkeys(group.members, loop.time())

    def heartbeat(self, generation: int, member_id: str, instance_id: str = "") -> int:
        """Answer NONE to a member of the last generation, for as long as no other member's session ends."""
        if member_id not in self._heard_s:
            return ErrorCode.UNKNOWN_MEMBER_ID
        self._heard_s[member_id] = self._loop.time()
        if generation != self.generation:
            return ErrorCode.ILLEGAL_GENERATION
        self._expire()
        return ErrorCode.NONE if self._is_stable else ErrorCode.REBALANCE_IN_PROGRESS

    def _expire(self) -> None:
        oldest_s = self._loop.time() - self._session_s
        for member_id in [each for each, heard_s in self._heard_s.items() if heard_s < oldest_s]:
            del self._heard_s[member_id]
            self._is_stable = False
            self._described = Described(ErrorCode.NONE)

    def join(self, member_id: str, metadata: bytes, instance_id: str = "") -> JoinResult:
        """Let a member that is known into the next generation, which gets no assignment."""
        if member_id not in self._heard_s:
            return JoinResult(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        self.generation += 1
        self._is_stable = True
        self._described = Described(ErrorCode.NONE)
        return JoinResult(ErrorCode.NONE, self.generation, member_id, member_id, {member_id: metadata})

    def sync(
        self, generation: int, member_id: str, assignments: Mapping[str, bytes], instance_id: str = ""
    ) -> SyncResult:
        """Fail to store the assignment."""
        return SyncResult(ErrorCode.COORDINATOR_NOT_AVAILABLE)

    def describe(self) -> Described:
        """Return the members and assignments as of the cut, until the group rebalances."""
        return self._described

    def leave(self, member_id: str) -> int:
        """Let a member go."""
        self._heard_s.pop(member_id, None)
        return ErrorCode.NONE
