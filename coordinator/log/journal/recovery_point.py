"""Record the last durable commit in a separate file when the journal becomes idle.

A frame contains the number of the last durable commit before it, which reveals damage to that commit.  The
last commits have no later frame, so the recovery point has the number of the last commit. The recovery point
is written once after each burst of commits, concurrently with further commits, so a busy journal never waits
for the recovery point.
"""

import asyncio
import logging

from coordinator.log.journal import layout
from coordinator.log.journal.disk import Disk
from coordinator.log.journal.failures import log_failure
from coordinator.log.journal.segments import JournalSegments

_logger = logging.getLogger(__name__)

# The time without a new commit after which the last durable commit is recorded. Damage to a commit is
# detectable after at most two such intervals from its acknowledgement.
IDLE_S = 0.025
# Delay before the recovery point is written again after a failure.
RETRY_S = 1.0


class RecoveryPointRecorder:
    """Writes the recovery point of one open journal."""

    def __init__(self, disk: Disk, segments: JournalSegments, recorded_commit: int = 0) -> None:
        """Create a recorder; `recorded_commit` is the commit in the existing file."""
        self._disk = disk
        self._segments = segments
        self._recorded_commit = recorded_commit
        self._timer: asyncio.TimerHandle | None = None
        self._writing: asyncio.Task[None] | None = None
        self._failed = False

    def commit_done(self) -> None:
        """Handle the end of a commit; the first commit of a burst starts a timer."""
        if self._timer is None:
            self._start_timer()

    async def record(self) -> None:
        """Write the recovery point now if the file names an older commit. A failure is logged."""
        if self._writing is not None:
            await asyncio.wait({self._writing})
        await self._write()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _start_timer(self) -> None:
        loop, delay_s = asyncio.get_running_loop(), RETRY_S if self._failed else IDLE_S
        self._timer = loop.call_later(delay_s, self._write_if_idle, self._segments.last_durable_commit())

    def _write_if_idle(self, earlier: layout.RecoveryPoint) -> None:
        self._timer = None
        if self._segments.last_durable_commit() != earlier:
            self._start_timer()
        elif self._writing is None and earlier.commit > self._recorded_commit:
            loop = asyncio.get_running_loop()
            self._writing = loop.create_task(self._write(), name="journal recovery point")
            self._writing.add_done_callback(self._on_written)

    def _on_written(self, writing: asyncio.Task[None]) -> None:
        self._writing = None
        if self._timer is None and self._segments.last_durable_commit().commit > self._recorded_commit:
            self._start_timer()

    async def _write(self) -> None:
        point = self._segments.last_durable_commit()
        if point.commit <= self._recorded_commit:
            return
        try:
            await self._disk.replace(layout.RECOVERY_POINT_NAME, layout.encode_recovery_point(point))
        except Exception as error:
            if not self._failed:
                log_failure(_logger, logging.WARNING, "the journal's recovery point cannot be written", error)
            self._failed = True
        else:
            self._failed = False
            self._recorded_commit = point.commit
