"""Recover a journal: determine which commits are valid, and where the journal may continue.

Recovered records must be durable before they are served to clients. If a process dies between a write and its
sync, its commits may exist only in the page cache. After a failed sync, even the page cache proves nothing
about the disk. Recovery therefore rewrites the last commit and syncs every file before anything is served.
"""

import logging
from typing import NamedTuple

from coordinator.log.journal import layout
from coordinator.log.journal.disk import Disk, write_durably
from coordinator.log.journal.scan import JournalTail, Segment, SegmentScan
from coordinator.log.journal.walk import SegmentWalk

_logger = logging.getLogger(__name__)


class RecoveredJournal(NamedTuple):
    """Result of a recovery.

    `can_append` is True if new commits may be written to the last segment. `recorded_commit` is the commit in
    the recovery point, 0 without a recovery point.
    """

    segments: list[Segment]
    start_offsets: list[int]
    end_offsets: list[int]
    next_commit: int
    oldest: int
    can_append: bool
    recorded_commit: int = 0


async def recover_journal(disk: Disk, state_partitions: int) -> RecoveredJournal:
    """Read all segments, verify each commit, find the end, and remove the files that are not needed.

    Raises LogDamaged for damage before the tail, ConfigError if the journal has another number of state
    partitions, OSError if it cannot be read or made durable.
    """
    walk = SegmentWalk(disk, state_partitions)
    await walk.run()
    scan, with_header, tail = walk.scan, walk.with_header, walk.tail
    if tail is None:
        # Not even the first segment has a valid header.
        for name in reversed(walk.headerless):
            await disk.remove(name)
        return RecoveredJournal(
            [], scan.start_offsets, scan.end_offsets, scan.next_commit, scan.oldest, can_append=False
        )
    _log_tail_warning(disk.describe(tail.name), tail)
    await _make_durable(disk, scan, with_header[len(scan.segments) - 1].header)
    first = next(index for index, segment in enumerate(scan.segments) if segment.number >= scan.oldest)
    unneeded = [segment.name for segment in scan.segments[:first]]
    # Remove files from both ends inwards, so that a crash during removal leaves no gap.
    for name in (*walk.dropped, *unneeded, *reversed(walk.headerless), *reversed(walk.cut_off)):
        await disk.remove(name)
    return RecoveredJournal(
        segments=scan.segments[first:],
        start_offsets=list(with_header[first].header.end_offsets),
        end_offsets=scan.end_offsets,
        next_commit=scan.next_commit,
        oldest=scan.oldest,
        can_append=tail.is_clean,
        recorded_commit=walk.recovery_point.commit if walk.recovery_point is not None else 0,
    )


async def _make_durable(disk: Disk, scan: SegmentScan, last_header: layout.SegmentHeader) -> None:
    """Rewrite the last header and the last commit, and sync every segment."""
    last = scan.segments[-1]
    await write_durably(disk, last.name, 0, layout.encode_header(last_header))
    if scan.last_frame is not None and scan.last_frame[0] == last.name:
        _, begin, end = scan.last_frame
        await write_durably(disk, last.name, begin, await disk.read(last.name, begin, end - begin))
    for segment in scan.segments:
        await disk.sync(segment.name)
        segment.durable = True


def _log_tail_warning(path: str, tail: JournalTail) -> None:
    if tail.lost_commits:
        _logger.error(
            "%s ends at byte %d, and %d later commits are ignored. With journal.sync=os, a machine "
            "crash loses commits that the system had not written. All earlier commits are intact.",
            path,
            tail.position,
            tail.lost_commits,
        )
    elif not tail.is_clean:
        _logger.warning(
            "%s has a torn tail from byte %d on. The last write did not finish and was not acknowledged.",
            path,
            tail.position,
        )
