"""The membership in a Kafka group: find the coordinator, join, sync, send heartbeats, and retry.

The join task joins when Kafka or this process requests a rebalance, and retries until it succeeds.  The
heartbeat task sends heartbeats, also while a join waits for other members, because their responses confirm
that no newer assignment exists.  Only these responses renew the lease:

    heartbeat with the generation of the assignment: NONE, or REBALANCE_IN_PROGRESS (no newer assignment yet)
    sync: this is the newest assignment

A successful join does not renew the lease: it begins a new generation, so the current assignment is outdated
until the response to the sync.

The rules are those of Kafka's GroupMetadataManager (classic groups).  A member id from Kafka is used until
Kafka rejects it as unknown (KIP-394). If the process joined with a second id, the group would wait for the
member with the first id in each rebalance, until its session times out.

With a group.instance.id (KIP-345), the first join replaces the previous process with this id without a
rebalance, and returns its assignment.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

from coordinator.cluster.kafka.broker_results import NO_NODE
from coordinator.cluster.kafka.group_results import DescribeResult, JoinResult
from coordinator.cluster.ownership.join_errors import (
    FIND_COORDINATOR_AGAIN,
    LOST_MEMBER_ID,
    JoinFailure,
    MembershipError,
    make_join_failure,
)
from coordinator.cluster.ownership.lease import Lease
from coordinator.cluster.ownership.limits import GroupLimits
from coordinator.errors import LogError
from protocol.errors import ErrorCode

if TYPE_CHECKING:
    from coordinator.cluster.kafka.group_client import KafkaGroupClient
    from coordinator.cluster.ownership.group_member import GroupMember

_logger = logging.getLogger(__name__)

_Answer = TypeVar("_Answer")

_NOT_JOINED_YET = MembershipError("not yet", "This replica has not joined its group yet.", is_transient=True)


class Membership:
    """The membership of one process in one group. Everything is called on one event loop.

    `generation` belongs to the last join, `assignment_generation` to the last assignment; -1 means none.
    """

    def __init__(
        self,
        group_client: "KafkaGroupClient",
        callbacks: "GroupMember",
        *,
        group_id: str,
        instance_id: str,
        limits: GroupLimits,
        lease: Lease,
        monotonic: Callable[[], float],
    ) -> None:
        self.instance_id = instance_id
        self.member_id = ""
        self.generation = -1
        self.assignment_generation = -1
        self._assignment_member_id = ""
        self.leads = False
        self.rebalances = 0
        self.membership_error: MembershipError | None = _NOT_JOINED_YET
        self._group_client = group_client
        self._callbacks = callbacks
        self._group_id = group_id
        self._limits = limits
        self._lease = lease
        self._monotonic = monotonic
        self._node = NO_NODE
        self._finding = asyncio.Lock()
        self._join_asked = asyncio.Event()
        self._join_asked.set()
        self._abandoned = asyncio.Event()
        self._joining = False
        self._lease_renewed = asyncio.Event()
        self._asking: asyncio.TimerHandle | None = None
        self._rebalanced_s = float("-inf")

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._join_loop(), name="group join")
            tasks.create_task(self._heartbeat_loop(), name="group heartbeat")
            tasks.create_task(self._watch_lease(), name="group lease")

    def request_rebalance(self, pause_s: float) -> None:
        """Rejoin, at the earliest `pause_s` after the last rebalance. The metadata of this member must have
        changed by then.

        If another rebalance comes first, it uses the new metadata, and this request is done.
        """
        loop = asyncio.get_running_loop()
        due_s = max(loop.time(), self._rebalanced_s + pause_s)
        if self._asking is not None:
            if self._asking.when() <= due_s:
                return
            self._asking.cancel()
        self._asking = loop.call_at(due_s, self._request_rebalance_now)

    def _request_rebalance_now(self) -> None:
        self._asking = None
        self._join_asked.set()

    def _cancel_rebalance_request(self) -> None:
        if self._asking is not None:
            self._asking.cancel()
            self._asking = None

    async def leave(self) -> None:
        """Leave the group within a time limit. `run` must have ended."""
        self._cancel_rebalance_request()
        self._lease.end()
        member_id, self.member_id, self.generation = self.member_id, "", -1
        if not member_id or self._node == NO_NODE:
            return
        with suppress(LogError, TimeoutError):
            async with asyncio.timeout(self._limits.leave_timeout_s):
                await self._group_client.leave(self._node, member_id)

    # Joining.

    async def _join_loop(self) -> None:
        pause_s = self._limits.retry_pause_first_s
        while True:
            await self._join_asked.wait()
            self._join_asked.clear()
            self._joining = True
            try:
                await self._join()
            except Exception as error:
                self._record_error(error)
                self._join_asked.set()
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, self._limits.retry_pause_max_s)
            else:
                pause_s = self._limits.retry_pause_first_s
            finally:
                self._joining = False

    async def _join(self) -> None:
        """Join the next generation and get its assignment. Raises JoinFailure and LogError."""
        node = await self._find_coordinator()
        self._cancel_rebalance_request()
        metadata = self._callbacks.encode_metadata()
        name = self.instance_id
        joined = await self._wait_unless_abandoned(
            self._group_client.join(node, self.member_id, metadata, name)
        )
        if joined.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            self.member_id = joined.member_id
            joined = await self._wait_unless_abandoned(
                self._group_client.join(node, self.member_id, metadata, name)
            )
        self._check_error_code(joined.error_code)
        self.member_id, self.generation = joined.member_id, joined.generation
        self.leads = joined.leader_id == joined.member_id
        if self._may_have_missed_assignments(joined):
            await self._wait_for_callback(self._callbacks.resign_all())
        assignments = await self._compute_assignments(joined) if self.leads else {}
        sent_s = self._monotonic()
        synced = await self._wait_unless_abandoned(
            self._group_client.sync(node, joined.generation, joined.member_id, assignments, name)
        )
        self._check_error_code(synced.error_code)
        self._rebalanced_s = asyncio.get_running_loop().time()
        self._callbacks.adopt_assignment(joined.generation, synced.assignment)
        if not self._lease.is_fresh():
            # Shards that the assignment takes away must not be read under the lease that the sync renews.
            await self._wait_for_callback(self._callbacks.wait_for_listener_calls())
        self.assignment_generation, self._assignment_member_id = joined.generation, joined.member_id
        self.rebalances += 1
        self._lease.renew(sent_s)
        self._record_success()

    def _may_have_missed_assignments(self, joined: JoinResult) -> bool:
        """Return whether other members may have owned this process's shards since its last assignment.

        A missed generation may have ended without an assignment. While the lease is fresh, no assignment gave
        these shards to another member.
        """
        next_one = (self.assignment_generation + 1, self._assignment_member_id)
        return (joined.generation, joined.member_id) != next_one and not self._lease.is_fresh()

    async def _wait_for_callback(self, hearing: Coroutine[Any, Any, None]) -> None:
        """Wait for a callback. Raises JoinFailure after the session timeout, because the process hangs."""
        try:
            async with asyncio.timeout(self._limits.session_timeout_s):
                await hearing
        except TimeoutError:
            raise JoinFailure(None) from None

    async def _compute_assignments(self, joined: JoinResult) -> Mapping[str, bytes]:
        try:
            return await self._callbacks.compute_assignments(joined.generation, joined.members)
        except Exception:
            # The leader must sync, or all members would wait for the rebalance timeout.
            _logger.exception("The assignment could not be computed.")
            return {}

    async def _wait_unless_abandoned(self, request: Coroutine[Any, Any, _Answer]) -> _Answer:
        """Return the response. Raises JoinFailure if `_abandoned` is set before the response arrives."""
        self._abandoned.clear()
        answering = asyncio.ensure_future(request)
        giving_up = asyncio.ensure_future(self._abandoned.wait())
        try:
            await asyncio.wait({answering, giving_up}, return_when=asyncio.FIRST_COMPLETED)
            if answering.done():
                return answering.result()
            raise JoinFailure(None)
        finally:
            answering.cancel()
            giving_up.cancel()
            await asyncio.gather(answering, giving_up, return_exceptions=True)

    async def describe(self) -> DescribeResult:
        """Return the members that the group coordinator stores. Raises JoinFailure and LogError."""
        return await self._group_client.describe(await self._find_coordinator())

    async def _find_coordinator(self) -> int:
        async with self._finding:
            if self._node == NO_NODE:
                found = await self._group_client.find_coordinator()
                self._check_error_code(found.error_code)
                self._node = found.node
            return self._node

    def _check_error_code(self, code: int) -> None:
        """Handle an error code. Raises JoinFailure for any error."""
        if code == ErrorCode.NONE:
            return
        if code in LOST_MEMBER_ID:
            # The shards stay owned until the next assignment: the process rejoins and claims them again.
            _logger.info(
                "Kafka no longer knows this member; rejoining.",
                extra={"group": self._group_id},
            )
            self.member_id, self.generation, self.leads = "", -1, False
            if code == ErrorCode.FENCED_INSTANCE_ID:
                self._drop_instance_id()
        elif code in FIND_COORDINATOR_AGAIN:
            self._node = NO_NODE
        raise make_join_failure(code, self._group_id)

    def _drop_instance_id(self) -> None:
        """Continue without the instance id; two processes that replace each other would never stop."""
        _logger.warning(
            "Another process joined the group with group.instance.id=%s. This one continues without the id.",
            self.instance_id,
            extra={"group": self._group_id},
        )
        self.instance_id = ""

    # Heartbeats.

    async def _heartbeat_loop(self) -> None:
        while True:
            await asyncio.sleep(self._limits.heartbeat_interval_s)
            if self.generation < 0:
                self._request_join()
                continue
            try:
                await self._send_heartbeat()
            except Exception as error:
                self._record_error(error)

    async def _send_heartbeat(self) -> None:
        """Send a heartbeat and handle its response. Raises JoinFailure and LogError."""
        node, generation, member_id = await self._find_coordinator(), self.generation, self.member_id
        if generation < 0:
            return
        sent_s = self._monotonic()
        code = await self._group_client.heartbeat(node, generation, member_id, self.instance_id)
        if (generation, member_id) != (self.generation, self.member_id):
            # The process has joined again; the response belongs to the previous generation.
            return
        if code in (ErrorCode.NONE, ErrorCode.REBALANCE_IN_PROGRESS):
            if generation == self.assignment_generation:
                self._lease.renew(sent_s)
                self._record_success()
            if code == ErrorCode.REBALANCE_IN_PROGRESS:
                self._request_join()
        elif code == ErrorCode.ILLEGAL_GENERATION:
            # `_request_join` does nothing if a join is already in progress.
            self._request_join()
        else:
            try:
                self._check_error_code(code)
            finally:
                if code != ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
                    self._abandoned.set()
                if code in LOST_MEMBER_ID:
                    # Request another join: a join in progress may succeed with the old member id.
                    self._join_asked.set()

    def _request_join(self) -> None:
        if not self._joining:
            self._join_asked.set()

    # Results.

    def _record_success(self) -> None:
        self._lease_renewed.set()
        if self.membership_error is not None:
            if not self.membership_error.is_transient:
                _logger.info("The group coordinator is reachable again.", extra={"group": self._group_id})
            self.membership_error = None

    def _record_error(self, error: Exception) -> None:
        """Store why the process is not a member, and log each kind of reason once."""
        if isinstance(error, LogError):
            # A node that does not answer may no longer be the coordinator.
            self._node = NO_NODE
            self._abandoned.set()
            sentence = f"Group {self._group_id} cannot be reached: {error}"
            membership_error: MembershipError | None = MembershipError("unreachable", sentence)
        elif isinstance(error, JoinFailure):
            membership_error = error.membership_error
        else:
            membership_error = MembershipError(
                f"{type(error).__name__}", f"Membership of the group failed: {error!r}."
            )
        if membership_error is None:
            return
        if self.membership_error is None or self.membership_error.kind != membership_error.kind:
            unexpected = not isinstance(error, LogError | JoinFailure)
            level = (
                logging.ERROR
                if unexpected
                else logging.INFO
                if membership_error.is_transient
                else logging.WARNING
            )
            _logger.log(level, "%s", membership_error.sentence, exc_info=error if unexpected else None)
        self.membership_error = membership_error

    async def _watch_lease(self) -> None:
        told = False
        while True:
            self._lease_renewed.clear()
            fresh = self._lease.is_fresh()
            if fresh != told:
                told = fresh
                self._callbacks.on_lease_changed(fresh)
            if fresh:
                # The lease's clock may be slightly behind the loop's when the loop wakes up.
                await asyncio.sleep(max(self._lease.remaining_s(), 0.001))
            else:
                await self._lease_renewed.wait()
