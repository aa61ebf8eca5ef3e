"""Decide whether this process can serve shards, ignoring short interruptions."""

from collections.abc import Callable

from coordinator.cluster.ownership.base import OwnershipListener
from coordinator.cluster.ownership.lease import Lease
from coordinator.cluster.ownership.limits import GroupLimits


class Readiness:
    """The readiness that this process reports to its group.

    `record_loop_alive` is called on the listener's loop, all other methods on the membership's loop.
    """

    def __init__(
        self,
        listener: OwnershipListener,
        lease: Lease,
        limits: GroupLimits,
        monotonic: Callable[[], float],
    ) -> None:
        self._listener = listener
        self._lease = lease
        self._limits = limits
        self._monotonic = monotonic
        self._reported_ready = listener.is_ready_to_serve()
        self._unready_since_s: float | None = None
        self._alive_s = monotonic()

    def record_loop_alive(self) -> None:
        """Record that the listener's event loop has run this call.

        If the loop hangs, the process is not ready.
        """
        self._alive_s = self._monotonic()

    def has_changed(self) -> bool:
        """Return whether readiness differs from the last reported value."""
        return self._is_ready() != self._reported_ready

    def report_readiness(self) -> bool:
        """Return whether the process is ready, and remember this as the reported value."""
        self._reported_ready = self._is_ready()
        return self._reported_ready

    def _is_ready(self) -> bool:
        """Return False after the process has been unready for some time.

        While Kafka does not answer this member, the time is not counted: the log is unavailable for the same
        reason, and for all members. When Kafka answers again, each member has the full time to become ready.
        """
        now_s = self._monotonic()
        hung = now_s - self._alive_s > self._limits.session_timeout_s
        if self._listener.is_ready_to_serve() and not hung:
            self._unready_since_s = None
            return True
        answer_age_s = self._lease.age_s()
        unanswered = answer_age_s is None or answer_age_s >= self._limits.unready_after_s
        if self._unready_since_s is None or (unanswered and not hung):
            self._unready_since_s = now_s
        return self._reported_ready and now_s - self._unready_since_s < self._limits.unready_after_s
