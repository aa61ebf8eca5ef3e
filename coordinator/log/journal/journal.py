"""The embedded journal: one append-only log on the local disk for all shards of the process.

Appends queue. One commit is in flight at a time: it writes all queued appends as one frame and syncs it once.
A callback at the end of each commit lets callers group appends (`coordinator.serve.runtime.group_commit`).
If a commit fails, its bytes may or may not be on the disk, and another sync proves nothing. The journal
abandons these bytes: it creates a segment whose durable header has the end position of the previous segment,
and writes the records there. If this fails too, appends fail with `LogOutcomeUnknown` (abandoned records) or
`LogUnavailable` (records that were never written), and all appends are refused until a retry succeeds.

When the journal becomes idle, the recovery point records the last durable commit (`recovery_point`). Every
frame has the number of the oldest needed segment. Segments before it are removed once a durable frame has its
number. The header of the oldest file has the start offset of each state partition.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from coordinator.errors import LogUnavailable
from coordinator.log.base import (
    RECORD_BYTES_MAX,
    AppendCallback,
    LoggedBatch,
    PendingEntries,
    Unit,
    UnsharedLog,
)
from coordinator.log.journal import layout
from coordinator.log.journal.disk import Disk, RealDisk, write_durably
from coordinator.log.journal.failures import RETRY_S, error_reason, fail_appends, log_failure, retry_delay_s
from coordinator.log.journal.pending import (
    Append,
    advance_end_offsets,
    call_done,
    new_append,
    take_frame_entries,
)
from coordinator.log.journal.reading import JournalFiles, read_segments
from coordinator.log.journal.recovery import recover_journal
from coordinator.log.journal.recovery_point import RecoveryPointRecorder
from coordinator.log.journal.scan import Segment
from coordinator.log.journal.segments import JournalSegments

_logger = logging.getLogger(__name__)
_NOT_OPEN = "the journal is not open"


class Journal(UnsharedLog):
    """A `StateLog` in a folder. See `coordinator.log.base.StateLog` for the guarantees.

    With `sync` "always", records are durable on the disk when `done` is called without an error. With "os",
    records survive a crash of the process, but a crash of the machine may lose the most recent records.
    """

    record_bytes_max = RECORD_BYTES_MAX

    def __init__(
        self,
        folder: Path,
        *,
        state_partitions: int,
        segment_bytes: int,
        sync: Literal["always", "os"],
        disk: Disk | None = None,
    ) -> None:
        self._folder = folder
        self._disk = disk if disk is not None else RealDisk(folder)
        self._state_partitions, self._segment_bytes = state_partitions, segment_bytes
        self._sync_mode: Literal["always", "os"] = sync
        self._segments = JournalSegments(self._disk, segment_bytes, [])
        self._start_offsets, self._end_offsets = [0] * state_partitions, [0] * state_partitions
        self._next_commit = 1
        self._oldest = self._oldest_recorded = 1  # The oldest needed segment, now and in the last frame.
        self._pending: list[Append] = []
        # `_unconfirmed` is the number of pending appends that may also be stored in abandoned bytes.
        self._unconfirmed = self._failures = 0
        self._commit_is_scheduled = self._is_suspended = self.committing = False
        self._commit_callback: Callable[[], None] = lambda: None
        self._recovery_point = RecoveryPointRecorder(self._disk, self._segments)
        self._rolling: asyncio.Task[None] | None = None
        self._retry: asyncio.TimerHandle | None = None
        self._failure: str | None = _NOT_OPEN
        self._has_abandoned_bytes, self._is_open = True, False
        self._idle_event = asyncio.Event()

    # Open and close.

    async def open(self) -> None:
        """Lock the folder, recover its contents, and prepare for appends."""
        try:
            self._disk.lock()
        except OSError as error:
            reason = error.strerror or error
            raise LogUnavailable(f"data.dir={self._folder} must be a writable directory: {reason}") from error
        try:
            await self._recover()
        except OSError as error:
            self._disk.unlock()
            raise LogUnavailable(f"the journal cannot be used: {error}") from error
        except BaseException:
            self._disk.unlock()
            raise
        self._is_open = True

    async def _recover(self) -> None:
        found = await recover_journal(self._disk, self._state_partitions)
        self._segments = JournalSegments(self._disk, self._segment_bytes, found.segments)
        self._start_offsets, self._end_offsets = found.start_offsets, found.end_offsets
        self._next_commit = found.next_commit
        self._oldest = self._oldest_recorded = found.oldest
        self._has_abandoned_bytes = not found.can_append
        self._failure, self._failures, self._unconfirmed = None, 0, 0
        self._recovery_point = RecoveryPointRecorder(self._disk, self._segments, found.recorded_commit)
        await self._recovery_point.record()
        if self._has_abandoned_bytes:
            # A torn tail is not overwritten, because its remaining bytes could later be reported as damage.
            try:
                await self._begin_segment(0)
            except Exception as error:
                if not found.segments:
                    raise
                self._refuse_appends("no new segment can be made", error)

    async def close(self) -> None:
        """Complete the commit in progress and all pending appends, then release the folder."""
        if not self._is_open:
            return
        self._is_open = False
        while self.committing or self._commit_is_scheduled or self._pending or self._rolling is not None:
            self._idle_event.clear()
            await self._idle_event.wait()
        if self._retry is not None:
            self._retry.cancel()
        await self._segments.wait_for_background_tasks()
        await self._write_end_frame()
        await self._recovery_point.record()
        self._disk.unlock()
        self._failure = _NOT_OPEN

    async def _write_end_frame(self) -> None:
        """Make the last segment durable, and write a last frame with the oldest needed segment."""
        segment = self._segments.segment_with_space(layout.frame_bytes(0), has_entries=False)
        if segment is None or self._has_abandoned_bytes:
            return
        try:
            if self._sync_mode == "os" and self._segments.are_retired_segments_durable():
                await self._disk.sync(segment.name)
                self._segments.durable_commit = self._next_commit - 1
            if self._may_record_oldest_segment():
                durable_commit = self._segments.durable_commit
                frame = layout.encode_frame(
                    segment.number, segment.end, self._next_commit, durable_commit, self._oldest, ()
                )
                await write_durably(self._disk, segment.name, segment.end, frame)
        except Exception as error:
            log_failure(_logger, logging.WARNING, "the end of the journal could not be marked", error)

    # Appends.

    def append(
        self,
        state_partition: int,
        records: Sequence[tuple[bytes, bytes | None]],
        timestamp_ms: int,
        done: AppendCallback,
        units: Sequence[Unit] = (),
    ) -> None:
        base_offset = self._end_offsets[state_partition]
        if self._failure is not None or not self._is_open:
            error = LogUnavailable(self._failure or "the journal is being closed")
            asyncio.get_running_loop().call_soon(done, base_offset, error)
            return
        if not records:
            asyncio.get_running_loop().call_soon(done, base_offset, None)
            return
        self._pending.append(new_append(state_partition, base_offset, timestamp_ms, list(records), done))
        if not self._commit_is_scheduled and not self.committing and not self._is_suspended:
            self._schedule_commit()

    def set_commit_callback(self, on_commit_finished: Callable[[], None]) -> bool:
        self._commit_callback = on_commit_finished if self._sync_mode == "always" else self._commit_callback
        return self._sync_mode == "always"

    def take_pending_entries(self) -> PendingEntries | None:
        self._is_suspended = True
        takes_writes = self._failure is None and self._is_open
        return (self._pending, self._end_offsets, new_append) if takes_writes else None

    def _schedule_commit(self) -> None:
        """Commit in the next iteration of the event loop, together with appends made until then."""
        self._commit_is_scheduled = True
        asyncio.get_running_loop().call_soon(self.flush)

    def flush(self) -> None:
        """Write all pending appends as one frame, now or after the commit or new segment in progress.

        While appends are refused, none are pending. A frame without entries may still free old segments.
        """
        self._commit_is_scheduled = self._is_suspended = False
        if self.committing or self._rolling is not None:
            return
        records_oldest = self._failure != _NOT_OPEN and self._may_record_oldest_segment()
        if not (self._pending or records_oldest):
            self._idle_event.set()
            return
        entries, size_bytes = take_frame_entries(self._pending)
        count = len(entries)
        segment = self._segments.segment_with_space(size_bytes, has_entries=count > 0)
        if segment is None or self._has_abandoned_bytes:
            self._start_segment_roll(size_bytes) if count else self._idle_event.set()
            return
        group, self._pending = self._pending[:count], self._pending[count:]
        oldest = self._oldest if records_oldest else self._oldest_recorded
        sync = records_oldest or self._sync_mode == "always"
        self.committing = True

        def on_written(error: Exception | None) -> None:
            self.committing = False
            try:
                if error is None:
                    self._append_observer(entries, layout.ENTRY_HEAD_BYTES)
                    self._on_committed(segment, group, size_bytes, oldest, sync)
                else:
                    self._on_commit_failed(group, error)
            finally:
                self._commit_callback()

        try:
            frame = layout.encode_frame(
                segment.number, segment.end, self._next_commit, self._segments.durable_commit, oldest, entries
            )
            is_written = self._disk.write(segment.name, segment.end, frame, sync, on_written)
        except Exception as error:
            asyncio.get_running_loop().call_soon(on_written, error)
            return
        if is_written:
            on_written(None)

    def _on_committed(
        self, segment: Segment, group: list[Append], size_bytes: int, oldest: int, sync: bool
    ) -> None:
        """Advance the end, start the next commit at once to keep the disk busy, and complete the appends."""
        segment.end += size_bytes
        segment.last_commit = self._next_commit
        segment.durable = sync
        if sync:
            self._segments.durable_commit = self._next_commit
        self._next_commit += 1
        self._failures = 0
        advance_end_offsets(group, self._end_offsets, segment.last_offsets)
        self._on_oldest_segment_recorded(oldest)
        if self._pending or self._oldest > oldest or not self._is_open:
            self.flush()
        for append in group:
            call_done(append, None)
        self._recovery_point.commit_done()
        self._segments.prepare_spare_segment()

    def _on_oldest_segment_recorded(self, oldest: int) -> None:
        """Remove the segments before the oldest needed one, which a durable frame or header contains."""
        if oldest != self._oldest_recorded:
            self._oldest_recorded = oldest
            self._segments.remove_segments_below(oldest)

    # Failures.

    def _on_commit_failed(self, group: list[Append], error: Exception) -> None:
        """Write the records of a failed commit to a new segment; refuse them after a second failure."""
        self._has_abandoned_bytes = True
        self._pending[:0] = group
        self._unconfirmed = len(group)
        self._failures += 1
        log_failure(_logger, logging.ERROR, "a commit failed; the journal abandons the written bytes", error)
        if self._failure is not None:
            self._idle_event.set()
        elif self._failures > 1:
            self._refuse_appends("commits fail", error)
        else:
            self._start_segment_roll(0)

    def _refuse_appends(self, what: str, error: Exception) -> None:
        """Refuse appends until a new segment begins; fail the pending appends."""
        failure = f"the journal takes no writes: {what}: {error_reason(error)}"
        if self._failure != failure:
            log_failure(_logger, logging.ERROR, f"the journal takes no writes: {what}", error)
        self._failure = failure
        fail_appends(self._pending, self._unconfirmed, self._failure)
        self._pending, self._unconfirmed = [], 0
        self._retry = asyncio.get_running_loop().call_later(retry_delay_s(self._failures), self._retry_roll)
        self._idle_event.set()

    def _retry_roll(self) -> None:
        if self.committing:
            # The commit in progress changes the end of this segment, which the next header must contain.
            self._retry = asyncio.get_running_loop().call_later(RETRY_S, self._retry_roll)
        elif self._is_open:
            self._start_segment_roll(0)

    def _start_segment_roll(self, frame_bytes: int) -> None:
        """Continue in a new segment with space for a frame of at least this size."""
        rolling = self._roll_segment(frame_bytes)
        self._rolling = asyncio.get_running_loop().create_task(rolling, name="journal roll")

    async def _roll_segment(self, frame_bytes: int) -> None:
        try:
            await self._begin_segment(frame_bytes)
        except Exception as error:
            self._rolling = None
            self._refuse_appends("no new segment can be made", error)
            self.flush()
            return
        self._rolling = None
        if self._failure is not None:
            _logger.warning("The journal accepts writes again.")
        self._failure = None
        self.flush()

    async def _begin_segment(self, frame_bytes: int) -> None:
        """Begin a segment whose header has the end of the previous one; commits after it are ignored."""
        before = self._segments.current
        # If earlier records are not durable yet (`os` mode), the header must not allow removals.
        may_remove = (before is None or before.durable) and self._may_record_oldest_segment()
        oldest = self._oldest if may_remove else self._oldest_recorded
        header = layout.SegmentHeader(
            number=before.number + 1 if before else 1,
            sync=self._sync_mode,
            previous_end=before.end if before else 0,
            first_commit=self._next_commit,
            durable=self._segments.durable_commit,
            oldest=oldest,
            end_offsets=tuple(self._end_offsets),
        )
        await self._segments.begin_segment(header, frame_bytes)
        self._has_abandoned_bytes, self._unconfirmed = False, 0
        self._on_oldest_segment_recorded(oldest)
        if self._sync_mode == "os":
            self._segments.sync_retired_segments()
        self._segments.prepare_spare_segment()

    # Reading.

    async def read(self, state_partitions: Collection[int]) -> AsyncIterator[list[LoggedBatch]]:
        """Yield the batches of the state partitions in one pass over the segments."""
        with self.files_for_reading() as files:
            async for chunk in read_segments(self._disk, *files[1:], state_partitions):
                yield chunk

    @contextmanager
    def files_for_reading(self) -> Iterator[JournalFiles]:
        """Yield the segments with their valid ends. Within the `with` block, no segment is removed."""
        with self._segments.segments_for_reading() as ends:
            yield JournalFiles(self._folder, tuple(ends), layout.first_position(self._state_partitions))

    # Pruning.

    def prune(self, state_partition: int, before_offset: int) -> None:
        """Mark records as redundant, and remove the oldest segments without needed records."""
        before_offset = min(before_offset, self._end_offsets[state_partition])
        if before_offset <= self._start_offsets[state_partition]:
            return
        self._start_offsets[state_partition] = before_offset
        self._oldest = max(self._oldest, self._segments.first_needed_segment(self._start_offsets).number)
        is_busy = self._commit_is_scheduled or self.committing
        if self._is_open and not is_busy and self._may_record_oldest_segment():
            self._schedule_commit()

    def _may_record_oldest_segment(self) -> bool:
        """Return whether the next frame may record a newer oldest segment, so that older ones are removed."""
        # Earlier frames must be durable, or a crash could lose both this frame and the removed segments.
        return self._oldest > self._oldest_recorded and (
            self._sync_mode == "always" or self._segments.are_retired_segments_durable()
        )

    def prune_offsets_freeing_storage(self, live_bytes: int) -> Mapping[int, int]:
        return self._segments.prune_offsets_freeing_storage(self._start_offsets, live_bytes)

    # Status.

    def start_offset(self, state_partition: int) -> int:
        return self._start_offsets[state_partition]

    def end_offset(self, state_partition: int) -> int:
        return self._end_offsets[state_partition]

    def health(self) -> str | None:
        return self._failure

    def size_bytes(self) -> int:
        return self._segments.size_bytes()
