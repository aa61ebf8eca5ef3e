"""Simulate Kafka's group coordinator for one group with the classic protocol.

The scenarios of `tests.unit.ownership` run with this group coordinator and with a real group coordinator. The
session of a member does not expire while its JoinGroup or SyncGroup request is pending.
"""

import asyncio
from collections.abc import Mapping

from coordinator.cluster.kafka.group_results import DescribeResult, JoinResult, MemberDescription, SyncResult
from protocol.errors import ErrorCode

# The default max.message.bytes of __consumer_offsets.
MAX_MESSAGE_BYTES = 1_048_588
# The bytes of a group record and its batch without the members; the bytes of a member without its metadata
# and assignment. A member has a member id, client id, host, two timeouts, and length fields.
GROUP_RECORD_BYTES = 61 + 120
MEMBER_RECORD_BYTES = 130

EMPTY, PREPARING, COMPLETING, STABLE = "Empty", "PreparingRebalance", "CompletingRebalance", "Stable"


class StoredMember:
    """A group member, as the group coordinator stores it."""

    def __init__(self, member_id: str, metadata: bytes) -> None:
        self.member_id = member_id
        self.metadata = metadata
        self.joining: asyncio.Future[JoinResult] | None = None
        self.syncing: asyncio.Future[SyncResult] | None = None
        self.expires: asyncio.TimerHandle | None = None
        self.assignment = b""

    @property
    def has_pending_join(self) -> bool:
        return self.joining is not None and not self.joining.done()

    def has_pending_request(self) -> bool:
        return any(future is not None and not future.done() for future in (self.joining, self.syncing))


class GroupCoordinator:
    """The group. The group; `node` is the id of the broker that coordinates it."""

    def __init__(self, *, session_s: float, rebalance_s: float, first_delay_s: float = 0.0) -> None:
        self.state = EMPTY
        self.generation = 0
        self.leader = ""
        self.members: dict[str, StoredMember] = {}
        self.session_s = session_s
        self.rebalance_s = rebalance_s
        self.first_delay_s = first_delay_s
        self.node = 1
        self.max_message_bytes = MAX_MESSAGE_BYTES
        # The member id by group.instance.id of the static members.
        self.static: dict[str, str] = {}
        self.stored_bytes = 0
        self._pending: set[str] = set()
        self._ids = 0
        self._deadline: asyncio.TimerHandle | None = None

    def add_member(self, member_id: str, metadata: bytes) -> None:
        """Add a group member that has no process."""
        self.members[member_id] = StoredMember(member_id, metadata)

    def expel_member(self, member_id: str) -> None:
        """Remove a group member, as if its session had expired."""
        self.static = {name: other for name, other in self.static.items() if other != member_id}
        self._remove_member(member_id, ErrorCode.UNKNOWN_MEMBER_ID)
        self._rebalance_after_leave()

    def _remove_member(self, member_id: str, code: int) -> StoredMember:
        member = self.members.pop(member_id)
        if member.expires is not None:
            member.expires.cancel()
        for future, answer in ((member.joining, JoinResult(code)), (member.syncing, SyncResult(code))):
            if future is not None and not future.done():
                future.set_result(answer)
        return member

    def move_to_broker(self, node: int) -> None:
        """Move the group to another broker, which loads the stored group."""
        self.node = node
        for member in self.members.values():
            if member.joining is not None and not member.joining.done():
                member.joining.set_result(JoinResult(ErrorCode.NOT_COORDINATOR))
            if member.syncing is not None and not member.syncing.done():
                member.syncing.set_result(SyncResult(ErrorCode.NOT_COORDINATOR))
            self._restart_session(member)

    def lose_group(self) -> None:
        """Delete the group, as if the topic with its records was lost."""
        for member_id in list(self.members):
            self.expel_member(member_id)
        self._enter_empty()
        self.generation = 0

    # The methods below serve requests to the group coordinator.

    def join(
        self, member_id: str, metadata: bytes, instance_id: str = ""
    ) -> JoinResult | asyncio.Future[JoinResult]:
        code = self._check_instance(member_id, instance_id) if member_id else ErrorCode.NONE
        if code != ErrorCode.NONE:
            return JoinResult(code)
        if not member_id:
            self._ids += 1
            member_id = f"member-{self._ids}"
            self._pending.add(member_id)
            if not instance_id:
                return JoinResult(ErrorCode.MEMBER_ID_REQUIRED, member_id=member_id)
            before, self.static[instance_id] = self.static.get(instance_id), member_id
            if before is not None:
                leader = self.leader
                self._replace_static_member(before, member_id, metadata)
                if self.state == STABLE:
                    # There is no rebalance. If the replaced member was the leader, the response still
                    # contains its member id as leader.
                    return JoinResult(ErrorCode.NONE, self.generation, member_id, leader)
                if self.state == COMPLETING:
                    self._prepare_rebalance()
        member = self.members.get(member_id)
        if member is None and member_id not in self._pending:
            return JoinResult(ErrorCode.UNKNOWN_MEMBER_ID)
        if member is None:
            self._pending.discard(member_id)
            member = self.members[member_id] = StoredMember(member_id, metadata)
            has_changed = True
        else:
            has_changed = member.metadata != metadata or (self.state == STABLE and self.leader == member_id)
            member.metadata = metadata
        if self.state in (COMPLETING, STABLE) and not has_changed:
            return self._make_join_result(member)
        member.joining = asyncio.get_running_loop().create_future()
        if self.state != PREPARING:
            self._prepare_rebalance()
        self._complete_if_all_joined()
        return member.joining

    def _replace_static_member(self, before: str, member_id: str, metadata: bytes) -> None:
        """Replace a member by another one with the same group.instance.id."""
        member = self.members[member_id] = StoredMember(member_id, metadata)
        self._pending.discard(member_id)
        member.assignment = self._remove_member(before, ErrorCode.FENCED_INSTANCE_ID).assignment
        if self.leader == before:
            self.leader = member_id
        self._restart_session(member)

    def sync(
        self, generation: int, member_id: str, assignments: Mapping[str, bytes], instance_id: str = ""
    ) -> SyncResult | asyncio.Future[SyncResult]:
        code = self._check_member(generation, member_id, instance_id)
        if code != ErrorCode.NONE:
            return SyncResult(code)
        member = self.members[member_id]
        self._restart_session(member)
        if self.state == PREPARING:
            return SyncResult(ErrorCode.REBALANCE_IN_PROGRESS)
        if self.state == STABLE:
            return SyncResult(ErrorCode.NONE, member.assignment)
        member.syncing = asyncio.get_running_loop().create_future()
        if member_id == self.leader:
            self._enter_stable(assignments)
        return member.syncing

    def heartbeat(self, generation: int, member_id: str, instance_id: str = "") -> int:
        code = self._check_member(generation, member_id, instance_id)
        if code != ErrorCode.NONE:
            return code
        self._restart_session(self.members[member_id])
        return ErrorCode.REBALANCE_IN_PROGRESS if self.state == PREPARING else ErrorCode.NONE

    def leave(self, member_id: str) -> int:
        if member_id not in self.members:
            return ErrorCode.UNKNOWN_MEMBER_ID
        self.expel_member(member_id)
        return ErrorCode.NONE

    def describe(self) -> DescribeResult:
        """Describe the group as Kafka does: without metadata and assignments unless the group is stable."""
        if self.state != STABLE:
            return DescribeResult(ErrorCode.NONE)
        members = self.members.values()
        return DescribeResult(
            ErrorCode.NONE, [MemberDescription(member.metadata, member.assignment) for member in members]
        )

    def _check_instance(self, member_id: str, instance_id: str) -> int:
        if instance_id and instance_id not in self.static:
            return ErrorCode.UNKNOWN_MEMBER_ID
        return (
            ErrorCode.NONE
            if self.static.get(instance_id, member_id) == member_id
            else ErrorCode.FENCED_INSTANCE_ID
        )

    def _check_member(self, generation: int, member_id: str, instance_id: str) -> int:
        code = self._check_instance(member_id, instance_id)
        if code != ErrorCode.NONE:
            return code
        if member_id not in self.members:
            return ErrorCode.UNKNOWN_MEMBER_ID
        return ErrorCode.NONE if generation == self.generation else ErrorCode.ILLEGAL_GENERATION

    # Group states.

    def _prepare_rebalance(self) -> None:
        """Start a rebalance.

        Start a rebalance: wait until all members have joined, or until the rebalance timeout.
        """
        delay_s = self.first_delay_s if self.state == EMPTY else self.rebalance_s
        for member in self.members.values():
            if member.syncing is not None and not member.syncing.done():
                member.syncing.set_result(SyncResult(ErrorCode.REBALANCE_IN_PROGRESS))
                self._restart_session(member)
        self._delayed = self.state == EMPTY and self.first_delay_s > 0
        self.state = PREPARING
        self._set_deadline(delay_s, self._continue_without_absent_members)

    def _set_deadline(self, seconds: float, then: "asyncio._Callback") -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline = asyncio.get_running_loop().call_later(seconds, then)

    def _complete_if_all_joined(self) -> None:
        joined = all(member.has_pending_join for member in self.members.values())
        if self.state == PREPARING and joined and not self._delayed:
            self._complete_join()

    def _continue_without_absent_members(self) -> None:
        """Continue without the members that did not join in time. Static members remain until their
        session expires.
        """
        self._delayed = False
        for member_id, member in list(self.members.items()):
            if not member.has_pending_join and member_id not in self.static.values():
                del self.members[member_id]
                if member.expires is not None:
                    member.expires.cancel()
        if self.members and not any(member.has_pending_join for member in self.members.values()):
            self._set_deadline(self.rebalance_s, self._continue_without_absent_members)
            return
        self._complete_join()

    def _complete_join(self) -> None:
        self.generation += 1
        if not self.members:
            self._enter_empty()
            return
        if self.leader not in self.members or not self.members[self.leader].has_pending_join:
            self.leader = next(name for name, member in self.members.items() if member.has_pending_join)
        self.state = COMPLETING
        for member in self.members.values():
            member.assignment, member.syncing = b"", None
            if member.joining is not None and not member.joining.done():
                member.joining.set_result(self._make_join_result(member))
                self._restart_session(member)
        self._set_deadline(self.rebalance_s, self._expel_members_without_sync)

    def _expel_members_without_sync(self) -> None:
        for member_id, member in list(self.members.items()):
            if self.state == COMPLETING and member.syncing is None:
                self.expel_member(member_id)

    def _enter_empty(self) -> None:
        self.state, self.leader = EMPTY, ""
        if self._deadline is not None:
            self._deadline.cancel()

    def _make_join_result(self, member: StoredMember) -> JoinResult:
        told = {m.member_id: m.metadata for m in self.members.values()}
        leads = member.member_id == self.leader
        return JoinResult(
            ErrorCode.NONE, self.generation, member.member_id, self.leader, told if leads else {}
        )

    def record_bytes(self, assignments: Mapping[str, bytes]) -> int:
        """Return the bytes of the record batch with the group's record (GroupMetadataValue)."""
        return GROUP_RECORD_BYTES + sum(
            MEMBER_RECORD_BYTES + len(member.metadata) + len(assignments.get(member.member_id, b""))
            for member in self.members.values()
        )

    def _refuse_record(self) -> None:
        """Refuse a record that is too large, as Kafka does: every sync fails, and the group rebalances."""
        for member in self.members.values():
            if member.syncing is not None and not member.syncing.done():
                member.syncing.set_result(SyncResult(ErrorCode.UNKNOWN_SERVER_ERROR))
                self._restart_session(member)
        self._prepare_rebalance()

    def _enter_stable(self, assignments: Mapping[str, bytes]) -> None:
        self.stored_bytes = self.record_bytes(assignments)
        if self.stored_bytes > self.max_message_bytes:
            self._refuse_record()
            return
        self.state = STABLE
        for member in self.members.values():
            member.assignment = assignments.get(member.member_id, b"")
            if member.syncing is not None and not member.syncing.done():
                member.syncing.set_result(SyncResult(ErrorCode.NONE, member.assignment))
                self._restart_session(member)

    def _rebalance_after_leave(self) -> None:
        if self.state in (STABLE, COMPLETING):
            self._prepare_rebalance()
        self._complete_if_all_joined()

    def _restart_session(self, member: StoredMember) -> None:
        if member.expires is not None:
            member.expires.cancel()
        loop = asyncio.get_running_loop()
        member.expires = loop.call_later(self.session_s, self._expire_member, member)

    def _expire_member(self, member: StoredMember) -> None:
        if self.members.get(member.member_id) is not member:
            return
        if member.has_pending_request():
            self._restart_session(member)
        else:
            self.expel_member(member.member_id)
