"""Ownership by a Kafka group: replicas join it, and its leader assigns the shards.

The membership has its own thread and event loop, so that a busy main loop does not end it.
`coordinator.cluster.ownership.group_member` runs on that thread; this module connects it with the main loop.
"""

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from coordinator.cluster.ownership.base import OwnershipListener, Replica
from coordinator.cluster.ownership.group_member import Calls, GroupMember
from coordinator.cluster.ownership.lease import Lease
from coordinator.cluster.ownership.limits import GroupLimits
from coordinator.cluster.ownership.messages import GroupSettings
from coordinator.process.clock import SystemClock

if TYPE_CHECKING:
    from coordinator.cluster.kafka.group_client import KafkaGroupClient

_logger = logging.getLogger(__name__)

# Added to the time limit of each step of draining and stopping, so that the step itself times out first.
_GRACE_S = 1.0
# The pause after an unexpected exception, before the membership is run again.
_FAILURE_PAUSE_S = 1.0


class GroupOwnership:
    """An `Ownership` in a Kafka group; see `coordinator.cluster.ownership.base`."""

    def __init__(
        self,
        make_group_client: "Callable[[], KafkaGroupClient]",
        *,
        replica: Replica,
        state_topic: str,
        state_partitions: int,
        group_id: str,
        group_instance_id: str = "",
        limits: GroupLimits | None = None,
        monotonic: Callable[[], float] = time.monotonic,  # noqa: TID251
        started_ms: int | None = None,
        own_thread: bool = True,
    ) -> None:
        """Create the object without connecting.

        `started_ms` is the start of this process, by default now. Without `own_thread`, everything runs on
        the loop of `start`.
        """
        self._make_group_client = make_group_client
        self._replica = replica
        self._setting = GroupSettings(state_topic, state_partitions)
        self._group_id = group_id
        self._group_instance_id = group_instance_id
        self._limits = limits or GroupLimits()
        self._monotonic = monotonic
        self._started_ms = SystemClock().now_ms() if started_ms is None else started_ms
        self._own_thread = own_thread
        self._lease = Lease(self._limits.lease_s, monotonic)
        self._group_client: KafkaGroupClient | None = None
        self._member: GroupMember | None = None
        self._thread: threading.Thread | None = None
        self._main: asyncio.AbstractEventLoop | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._running: asyncio.Task[None] | None = None
        self._ended = False

    async def start(self, listener: OwnershipListener) -> None:
        """Begin to join the group. Raises ConfigError if its settings are invalid."""
        self._main = asyncio.get_running_loop()
        self._group_client = self._make_group_client()
        self._member = GroupMember(
            self._group_client,
            listener,
            replica=self._replica,
            setting=self._setting,
            group_id=self._group_id,
            group_instance_id=self._group_instance_id,
            started_ms=self._started_ms,
            limits=self._limits,
            lease=self._lease,
            monotonic=self._monotonic,
            tell=self._deliver_listener_calls,
        )
        self._loop = asyncio.new_event_loop() if self._own_thread else self._main
        self._loop.call_soon_threadsafe(self._start_member)
        if self._own_thread:
            self._thread = threading.Thread(
                target=_run_event_loop, args=(self._loop,), name="ownership", daemon=True
            )
            self._thread.start()

    async def drain(self, timeout_s: float) -> None:
        """Hand all shards over, up to the time limit, and leave the group."""
        if self._loop is not None and not self._ended:
            await self._run_on_member_loop(
                self._drain_and_leave(timeout_s), timeout_s + self._limits.leave_timeout_s
            )

    async def stop(self) -> None:
        """Leave the group at once. The listener gets no further calls."""
        if self._loop is None or self._ended:
            return
        await self._run_on_member_loop(self._leave_and_close(), self._limits.leave_timeout_s)
        self._ended = True
        if self._thread is not None:
            self._loop.call_soon_threadsafe(self._loop.stop)
            await asyncio.to_thread(self._thread.join, _GRACE_S)

    def lease_is_fresh(self) -> bool:
        return self._lease.is_fresh()

    def on_fenced(self, state_partition: int) -> None:
        """Pass the number of a fenced shard to the group member, which requests a rebalance."""
        if self._loop is not None and self._member is not None:
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._member.on_fenced, state_partition)

    def hand_over(self, state_partition: int, instance: str) -> None:
        """Pass a hand-over request to the group member, which requests a rebalance."""
        if self._loop is not None and self._member is not None:
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._member.hand_over, state_partition, instance)

    def health(self) -> list[str]:
        return [] if self._member is None else self._member.health()

    # Metrics, which any thread may read.

    @property
    def generation(self) -> int:
        """The generation of the current assignment, -1 without an assignment."""
        return -1 if self._member is None else self._member.membership.assignment_generation

    @property
    def heartbeat_age_s(self) -> float | None:
        """The seconds since the last confirmed heartbeat, None without a lease."""
        return self._lease.age_s()

    @property
    def members(self) -> int:
        """The number of replicas in the current assignment."""
        return 0 if self._member is None else self._member.members

    @property
    def rebalances(self) -> int:
        """The number of assignments that this process received."""
        return 0 if self._member is None else self._member.membership.rebalances

    # Calls between the two event loops.

    def _deliver_listener_calls(self, calls: Calls) -> None:
        """Schedule a batch of listener calls on the listener's loop, after earlier batches."""
        assert self._main is not None
        # RuntimeError: the listener's loop is closed, so the calls are no longer needed.
        with suppress(RuntimeError):
            self._main.call_soon_threadsafe(self._run_listener_calls, calls)

    def _run_listener_calls(self, calls: Calls) -> None:
        if self._ended:
            return
        for call in calls:
            try:
                call()
            except Exception:
                _logger.exception("An assignment could not be applied.")

    async def _run_on_member_loop(self, work: Coroutine[Any, Any, None], timeout_s: float) -> None:
        """Run a coroutine on the membership's loop. Stop waiting shortly after `timeout_s`."""
        assert self._loop is not None
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s + _GRACE_S):
                await asyncio.wrap_future(future)

    # Methods that run on the membership's loop.

    def _start_member(self) -> None:
        self._running = asyncio.ensure_future(self._run_membership())

    async def _run_membership(self) -> None:
        assert self._member is not None
        while True:
            try:
                await self._member.run()
            except Exception:
                _logger.exception("Internal error in the group membership; retrying.")
                await asyncio.sleep(_FAILURE_PAUSE_S)

    async def _drain_and_leave(self, timeout_s: float) -> None:
        assert self._member is not None
        try:
            async with asyncio.timeout(timeout_s):
                await self._member.hand_over_all()
                await self._member.wait_until_handed_over()
        except TimeoutError:
            self._member.resign_remaining()
        await self._leave_group()

    async def _leave_and_close(self) -> None:
        await self._leave_group()
        assert self._group_client is not None
        try:
            await self._group_client.close()
        except Exception:
            _logger.exception("Connections to the group could not be closed.")

    async def _leave_group(self) -> None:
        assert self._member is not None
        if self._running is not None:
            self._running.cancel()
            await asyncio.gather(self._running, return_exceptions=True)
        await self._member.membership.leave()


def _run_event_loop(loop: asyncio.AbstractEventLoop) -> None:
    # Without tasks, `gather` uses the event loop of the thread.
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
        # Run the cancelled tasks until they end.
        left = asyncio.all_tasks(loop)
        for task in left:
            task.cancel()
        loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
    finally:
        loop.close()
