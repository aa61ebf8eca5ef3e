"""Read and validate all segments of a folder without changing anything.

Recovery and the offline tools both use this walk, so they always agree about the contents of a journal.
"""

import asyncio
import logging

from coordinator.log.journal import layout
from coordinator.log.journal.disk import Disk
from coordinator.log.journal.scan import (
    FollowingFrame,
    FrameVisitor,
    JournalTail,
    SegmentScan,
    SegmentWithHeader,
    check_headerless_file,
    find_following_frames,
    read_header,
    segment_number,
)

_logger = logging.getLogger(__name__)


class SegmentWalk:
    """One pass over a folder. The attributes are the results; after an exception, the results are partial."""

    def __init__(self, disk: Disk, state_partitions: int | None, visit: FrameVisitor | None = None) -> None:
        """Create a walk; if `state_partitions` is None, the journal's own number is used.

        `visit` is called with each valid commit, on any thread.
        """
        self._disk = disk
        self.visit = visit
        self.state_partitions = state_partitions
        # Segments with a valid header, oldest first.
        self.with_header: list[SegmentWithHeader] = []
        # Segments whose removal was interrupted, files without a valid header, and segments after the
        # journal's end.
        self.dropped: list[str] = []
        self.headerless: list[str] = []
        self.cut_off: list[str] = []
        self.scan = SegmentScan([], 0, disk.describe)
        self.tail: JournalTail | None = None
        self.recovery_point: layout.RecoveryPoint | None = None

    async def run(self) -> None:
        """Read and validate all files.

        Raises LogDamaged for damage before the tail, ConfigError if the journal has another number of state
        partitions, OSError if it cannot be read.
        """
        await self._read_recovery_point()
        await self._read_headers()
        try:
            await self._check_headerless_files()
        finally:
            # Segments below `oldest` exist because the process died while it removed them. These segments are
            # not needed, so damage in them is ignored.
            oldest = self.with_header[-1].header.oldest if self.with_header else 0
            self.dropped = [name for name, header in self.with_header if header.number < oldest]
            del self.with_header[: len(self.dropped)]
        await self._scan_segments()
        self.scan.check_oldest_segment()

    async def _read_recovery_point(self) -> None:
        """Read the recovery point before the segments: a running coordinator may append to them meanwhile."""
        name = layout.RECOVERY_POINT_NAME
        if name not in self._disk.names():
            return
        self.recovery_point = layout.decode_recovery_point(
            await self._disk.read(name, 0, layout.SECTOR_BYTES)
        )
        if self.recovery_point is None:
            _logger.warning(
                "%s is not valid and is ignored: the process or the machine died while the file was created, "
                "or the file is damaged. The next recovery point replaces it.",
                self._disk.describe(name),
            )

    async def _read_headers(self) -> None:
        for name in self._disk.names():
            if segment_number(name) is None:
                continue
            head = await self._disk.read(name, 0, layout.header_bytes(layout.STATE_PARTITIONS_MAX))
            header = read_header(self._disk.describe(name), head, self.state_partitions)
            if header is None:
                self.headerless.append(name)
            else:
                self.with_header.append(SegmentWithHeader(name, header))
                self.state_partitions = len(header.end_offsets)

    async def _check_headerless_files(self) -> None:
        last_number = max((segment_number(name) or 0 for name, _ in self.with_header), default=0)
        for name in self.headerless:
            data = await self._read_segment(name)
            check_headerless_file(name, data, last_number, self.state_partitions or 1, self._disk.describe)

    async def _scan_segments(self) -> None:
        self.scan = SegmentScan(
            self.with_header, self.state_partitions or 0, self._disk.describe, self.recovery_point
        )
        if not self.with_header:
            self.scan.check_recovery_point()
        for index, (name, _) in enumerate(self.with_header):
            data = await self._read_segment(name)
            # Scan on another thread, because a scan of 64 MiB takes about half a second, too long for the
            # event loop.
            if not await asyncio.to_thread(self.scan.scan_segment, data, self.visit):
                later = self.with_header[index + 1 :]
                self.tail = self.scan.find_tail(data, await self._collect_following_frames(later))
                self.cut_off = [segment.name for segment in later]
                return

    async def _collect_following_frames(self, later: list[SegmentWithHeader]) -> list[FollowingFrame]:
        found: list[FollowingFrame] = []
        for name, header in later:
            found += find_following_frames(name, header, await self._read_segment(name), 0)
        return found

    async def _read_segment(self, name: str) -> memoryview:
        return memoryview(await self._disk.read(name, 0, self._disk.size(name)))
