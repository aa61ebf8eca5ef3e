"""Run one shard: load it, process its batches, recover and close it.

Memory is a cache of the log. If an append fails, or memory and log may differ, memory is discarded and the
shard is loaded again. Loading again is the only way to recover.

States: CLOSED -> LOADING -> ACTIVE -> LOADING ...; LOADING -> FAILED -> LOADING; any -> CLOSED. A shard is
CLOSED while another process owns it. A fenced shard stays CLOSED until this process is elected again: if two
processes opened it without an election, each would fence the other forever.
"""

import asyncio
import logging
from collections.abc import Callable
from itertools import takewhile

from coordinator.errors import LogError, LogFenced, LogUnavailable
from coordinator.serve.runtime.decider import ShardServices
from coordinator.serve.runtime.operations import Operation, refuse_all, report_failure
from coordinator.serve.runtime.shard_queue import ShardQueue
from coordinator.serve.runtime.status import ShardStatus
from coordinator.shard import Shard
from protocol.errors import ErrorCode

_logger = logging.getLogger(__name__)


class ShardRunner(ShardQueue):
    """Runs one shard on the event loop without a task. `Runtime` creates and closes the runner."""

    # Without an instance dictionary, the compiled methods of `ShardQueue` call each other directly. With an
    # instance dictionary, each call first searches for an override, which made writes of 50 share-partitions
    # 14 % more expensive.
    __slots__ = (
        "_on_fenced",
        "_policy",
        "_reload",
        "elected",
        "failure",
        "load_ms",
        "loaded_records",
        "owner_epoch",
    )

    def __init__(
        self,
        state_partition: int,
        services: ShardServices,
        *,
        reload: Callable[["ShardRunner"], None],
        on_fenced: Callable[[int], None] = lambda state_partition: None,
    ) -> None:
        super().__init__(state_partition, services)
        # Whether this process should own the shard; if not, loading stops.
        self.elected = False
        self.failure: str | None = None
        self.owner_epoch = 0
        self.load_ms = 0
        self.loaded_records = 0
        self._policy = services.policy
        self._reload = reload
        self._on_fenced = on_fenced

    def _recover(self, error: LogError, waiting: list[Operation]) -> None:
        """Refuse the waiting operations, and load the shard again unless this process was fenced."""
        if isinstance(error, LogFenced):
            refuse_all(waiting, ErrorCode.NOT_COORDINATOR, str(error))
            self.handle_fenced(error)
            return
        _logger.warning("Shard %d is loaded again: %s", self.state_partition, error)
        if isinstance(error, LogUnavailable):
            refuse_all(waiting, ErrorCode.COORDINATOR_NOT_AVAILABLE, str(error))
        else:
            refuse_all(waiting, ErrorCode.NOT_COORDINATOR, f"The outcome is unknown: {error}")
        self._reload(self)

    # Loading and closing.

    def begin_loading(self) -> None:
        """Discard the state. Operations are queued until `finish_loading`, also after `loading_failed`."""
        assert self._records_in_flight is None, "a shard was loaded while its append was in flight"
        self.status = ShardStatus.LOADING
        self.failure = None
        self._reads_arrived = False
        self.shard = Shard(self.state_partition, self._policy)

    def finish_loading(self, shard: Shard, next_log_offset: int, records: int, load_ms: int) -> None:
        """Start to serve the replayed `shard`, unless another load or a close began meanwhile."""
        if self.shard is not shard or self.status is not ShardStatus.LOADING:
            return
        self.status = ShardStatus.ACTIVE
        self.load_ms = load_ms
        self.loaded_records = records
        self._next_log_offset = next_log_offset
        if self._queue:
            self._schedule_batch()

    def loading_failed(self, reason: str) -> None:
        """Set the status to FAILED. Operations wait for the next attempt, or expire."""
        if self.status is ShardStatus.LOADING:
            self.status = ShardStatus.FAILED
            self.failure = reason

    def close(self, reason: str = "This coordinator is stopping.") -> None:
        """Refuse queued operations with NOT_COORDINATOR. The append in flight completes as usual."""
        self.status = ShardStatus.CLOSED
        self.elected = False
        self._metrics.prune_offsets.pop(self.state_partition, None)
        waiting, self._queue = self._queue, []
        self._clear_queued_keys()
        refuse_all(waiting, ErrorCode.NOT_COORDINATOR, reason)

    def handle_fenced(self, error: LogFenced) -> None:
        """Close the shard, because another process owns it, and discard its state."""
        _logger.warning("Shard %d is closed: %s", self.state_partition, error)
        self.close(str(error))
        self.discard_state(str(error))
        try:
            self._on_fenced(self.state_partition)
        except Exception as failure:
            report_failure(f"the fencing callback of shard {self.state_partition} failed", failure)

    def discard_state(self, failure: str | None = None) -> None:
        """Discard the state of a closed shard; `failure` is the reason if an operator should know it."""
        self.failure = failure
        self.shard = Shard(self.state_partition, self._policy)

    async def wait_for_append(self) -> None:
        if self._records_in_flight is not None:
            self._append_finished = self._append_finished or asyncio.Event()
            await self._append_finished.wait()

    def expire_operations(self) -> None:
        """Refuse operations that have waited too long, and renew the lease; called once per tick."""
        now_s = self._loop.time()
        self._renew_lease()
        if self.append_overdue:
            # The share-partitions of refused operations still count as changing, because the append may
            # succeed.
            self._index_in_flight_keys()
            self._in_flight_indexed = 0
            waiting, self._awaiting_append = self._awaiting_append, []
            refuse_all(
                waiting,
                ErrorCode.COORDINATOR_NOT_AVAILABLE,
                "The log did not confirm in time; the write may still be stored.",
            )
        if self.status is ShardStatus.ACTIVE:
            wait_max_s = self._limits.write_timeout_s
            code, message = ErrorCode.COORDINATOR_NOT_AVAILABLE, "The log is slow; try again."
        else:
            wait_max_s = self._limits.load_wait_s
            code, message = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, "The shard is loading; try again."
        # The queue is in order of arrival, so only its beginning is checked: it may be long.
        expired = list(takewhile(lambda operation: now_s - operation.received_s > wait_max_s, self._queue))
        if expired:
            del self._queue[: len(expired)]
            self._clear_queued_keys()
            refuse_all(expired, code, message)

    @property
    def append_in_flight(self) -> bool:
        """True while the log has not completed an append."""
        return self._records_in_flight is not None

    @property
    def append_overdue(self) -> bool:
        """True if the append in flight has taken longer than `write_timeout_s`."""
        return (
            self._records_in_flight is not None
            and self._loop.time() - self._append_started_s > self._limits.write_timeout_s
        )

    @property
    def next_log_offset(self) -> int:
        return self._next_log_offset
