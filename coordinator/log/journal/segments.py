"""The segments in use, the spare segment, and the segments to be removed.

A segment becomes current when its header is durable; the header has the end position of the previous segment.
Files are created and removed in the background. If creating a file fails, the creation is retried when the
file is needed, and an error then fails the operation.
"""

import asyncio
import logging
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from coordinator.log.journal import layout
from coordinator.log.journal.disk import Disk, write_durably
from coordinator.log.journal.failures import log_failure
from coordinator.log.journal.scan import Segment, segment_name

_logger = logging.getLogger(__name__)

# The target size of the journal: this many segments, or this multiple of the live state if that is more.
SEGMENTS_MIN = 4
LIVE_BYTES_FACTOR = 3
# Minimum time between attempts to create a spare segment, unless a commit needs it.
SPARE_RETRY_S = 1.0


class JournalSegments:
    """The files of an open journal, oldest first; owned by one `Journal`."""

    def __init__(self, disk: Disk, segment_bytes: int, used: list[Segment]) -> None:
        self._disk = disk
        self._segment_bytes = segment_bytes
        self._spare: str | None = None
        # True if the header of a next segment may be on the disk, after an error. Recovery would ignore
        # bytes after the end position in that header, so nothing more is written to the current segment.
        self._is_ended = False
        self._preparing: asyncio.Task[None] | None = None
        self._retry_s = float("-inf")
        self._removing: asyncio.Task[None] | None = None
        self._pending_removal: list[Segment] = []
        self._syncing: asyncio.Task[None] | None = None
        self._readers = 0
        self.used = used
        # The last commit that is known to be durable.
        self.durable_commit = used[-1].last_commit if used else 0

    @property
    def current(self) -> Segment | None:
        """The segment that commits go to."""
        return self.used[-1] if self.used else None

    def last_durable_commit(self) -> layout.RecoveryPoint:
        """Return the last commit that is known to be durable, and the segment that contains it."""
        number = 0
        for segment in reversed(self.used):
            if number and segment.last_commit < self.durable_commit:
                break
            number = segment.number
        return layout.RecoveryPoint(number, self.durable_commit)

    def size_bytes(self) -> int:
        used_bytes = sum(segment.size_bytes for segment in (*self._pending_removal, *self.used))
        return used_bytes + (self._segment_bytes if self._spare is not None else 0)

    def segment_with_space(self, frame_bytes: int, *, has_entries: bool) -> Segment | None:
        """Return the current segment if it has space for a frame, else None."""
        segment, reserve_bytes = self.current, layout.RESERVE_BYTES if has_entries else 0
        if segment is None or self._is_ended:
            return None
        return segment if segment.end + frame_bytes + reserve_bytes <= segment.size_bytes else None

    async def begin_segment(self, header: layout.SegmentHeader, frame_bytes: int) -> None:
        """Make the segment of `header` the current one, with space for a frame of `frame_bytes`.

        Exceptions of the disk propagate; after an exception, the previous segment stays current.
        """
        if self._preparing is not None:
            await asyncio.wait({self._preparing})
        name = segment_name(header.number)
        first_position = layout.first_position(len(header.end_offsets))
        size_bytes = max(self._segment_bytes, first_position + frame_bytes + layout.RESERVE_BYTES)
        # Forget the spare segment first: if creating its file again fails, the file no longer exists.
        spare, self._spare = self._spare, None
        if spare != name or size_bytes > self._segment_bytes:
            await self._disk.prepare(name, size_bytes)
        try:
            await write_durably(self._disk, name, 0, layout.encode_header(header))
        except Exception:
            # The header may or may not be on the disk. Both cases are consistent if nothing is written after
            # the end of the previous segment in the header.
            self._is_ended = True
            with suppress(Exception):
                await self._disk.remove(name)
                self._is_ended = False
            raise
        self._is_ended = False
        self.used.append(
            Segment(header.number, size_bytes, first_position, {}, header.first_commit - 1, durable=True)
        )

    def prepare_spare_segment(self) -> None:
        """Start creating the next segment's file in the background, unless it exists already."""
        if self._spare is not None or _is_task_running(self._preparing):
            return
        if asyncio.get_running_loop().time() < self._retry_s:
            return
        self._preparing = _start_task(
            self._prepare_segment(segment_name(self.used[-1].number + 1)), "journal spare"
        )

    async def _prepare_segment(self, name: str) -> None:
        try:
            await self._disk.prepare(name, self._segment_bytes)
            self._spare = name
        except Exception as error:
            log_failure(
                _logger,
                logging.WARNING,
                "the next segment of the journal cannot be created in advance",
                error,
            )
            self._retry_s = asyncio.get_running_loop().time() + SPARE_RETRY_S

    # Needed segments. `starts` has the start offset of each state partition.

    def first_needed_segment(self, starts: Sequence[int]) -> Segment:
        """Return the oldest segment with a needed record, or the current segment."""
        return next((segment for segment in self.used if _needed_end_offsets(segment, starts)), self.used[-1])

    def prune_offsets_freeing_storage(self, starts: Sequence[int], live_bytes: int) -> dict[int, int]:
        if not self.used:
            return {}
        first = self.first_needed_segment(starts)
        needed_bytes = sum(segment.size_bytes for segment in self.used if segment.number >= first.number)
        allowed_bytes = max(SEGMENTS_MIN * self._segment_bytes, LIVE_BYTES_FACTOR * live_bytes)
        if needed_bytes <= allowed_bytes or first is self.current:
            return {}
        return _needed_end_offsets(first, starts)

    # Removal.

    def remove_segments_below(self, oldest: int) -> None:
        """Remove the segments before `oldest`; a durable frame must contain `oldest` already."""
        while self.used[0].number < oldest:
            self._pending_removal.append(self.used.pop(0))
        self._schedule_removal()

    def _schedule_removal(self) -> None:
        if self._pending_removal and not self._readers and not _is_task_running(self._removing):
            self._removing = _start_task(self._remove_files(), "journal drop")

    async def _remove_files(self) -> None:
        # While a reader is active, no file is removed. The oldest file is removed first, so that a crash
        # leaves no gap.
        while self._pending_removal and not self._readers:
            try:
                await self._disk.remove(self._pending_removal[0].name)
            except Exception as error:
                what = "a segment of the journal that is not needed cannot be removed"
                log_failure(_logger, logging.WARNING, what, error)
                return
            del self._pending_removal[0]

    @contextmanager
    def segments_for_reading(self) -> Iterator[list[tuple[int, int]]]:
        """Return number and valid end of all segments; their files stay until the `with` block ends."""
        self._readers += 1
        try:
            yield [(segment.number, segment.end) for segment in self.used]
        finally:
            self._readers -= 1
            self._schedule_removal()

    # The following methods sync segments that were written without a sync, in `os` mode.

    def sync_retired_segments(self) -> None:
        """Sync all segments except the current one in the background."""
        if not _is_task_running(self._syncing):
            self._syncing = _start_task(self._sync_retired_in_background(), "journal sync")

    async def _sync_retired_in_background(self) -> None:
        while retired := [segment for segment in self.used[:-1] if not segment.durable]:
            try:
                await self._disk.sync(retired[0].name)
            except Exception as error:
                # The sync is retried with the next segment.  If the system has dropped the unwritten sectors
                # by then, a crash of the machine shows up as damage, not as silently missing records.
                log_failure(_logger, logging.ERROR, "a full segment of the journal cannot be synced", error)
                return
            retired[0].durable = True
            self.durable_commit = max(self.durable_commit, retired[0].last_commit)

    def are_retired_segments_durable(self) -> bool:
        """Return whether all segments except the current one are durable."""
        return all(segment.durable for segment in self.used[:-1])

    async def wait_for_background_tasks(self) -> None:
        for task in (self._preparing, self._removing, self._syncing):
            if task is not None:
                await asyncio.wait({task})


def _needed_end_offsets(segment: Segment, starts: Sequence[int]) -> dict[int, int]:
    return {
        state_partition: last_offset + 1
        for state_partition, last_offset in segment.last_offsets.items()
        if last_offset >= starts[state_partition]
    }


def _is_task_running(task: asyncio.Task[None] | None) -> bool:
    return task is not None and not task.done()


def _start_task(work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
    return asyncio.get_running_loop().create_task(work, name=name)
