"""Inspect a journal offline: verify it, report its contents, and decode its batches.

Inspection neither locks nor changes the journal, so a coordinator may write to the journal meanwhile. Invalid
bytes are reported only if two consecutive passes find them at the same position, because a single pass may
have read an unfinished write.
"""

import asyncio
from collections.abc import Collection, Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from coordinator.errors import LogDamaged
from coordinator.log.journal import layout
from coordinator.log.journal.disk import Disk, RealDisk
from coordinator.log.journal.scan import ADVICE, SegmentScan, read_frames
from coordinator.log.journal.walk import SegmentWalk
from protocol.errors import DecodeError
from protocol.record_batch import RecordBatch, decode_batches

ATTEMPTS_MAX = 6
# If a coordinator removes a segment during a pass, the pass is repeated and not counted.
REMOVALS_MAX = 100


class SegmentReport(NamedTuple):
    """The valid part of one segment: `used_bytes` of `size_bytes`, commits `first_commit` and up."""

    file: str
    number: int
    size_bytes: int
    used_bytes: int
    first_commit: int
    commits: int
    records: int


class TornTail(NamedTuple):
    """Position of an incomplete write. `lost_commits` later commits are ignored (`journal.sync=os`)."""

    file: str
    position: int
    lost_commits: int


class JournalReport(NamedTuple):
    """Contents of a journal, up to the first damage if there is any.

    `start_offsets` and `end_offsets` are log offsets by state partition.  `unused_files` are files that the
    next start removes or reuses; their records are ignored.  `recovery_point` is the last commit recorded as
    durable. `is_changing` is true if a coordinator kept writing, so that no two passes saw the same end.
    """

    folder: str
    state_partitions: int
    segments: list[SegmentReport]
    start_offsets: list[int]
    end_offsets: list[int]
    unused_files: list[str]
    torn_tail: TornTail | None
    recovery_point: int | None
    is_changing: bool
    damage: LogDamaged | None


class DumpedBatch(NamedTuple):
    """A record batch with its commit and the position of its first byte in the file."""

    file: str
    position: int
    commit: int
    state_partition: int
    batch: RecordBatch


def verify_journal(folder: Path) -> JournalReport:
    """Read a whole journal as the next start would, decode every record, and return a report.

    Damage is part of the report.  Raises OSError if the folder or a file cannot be read.
    """
    return asyncio.run(inspect_journal(RealDisk(folder)))


def dump_journal(folder: Path, *, state_partitions: Collection[int] | None = None) -> Iterator[DumpedBatch]:
    """Yield all valid batches of all state partitions, or of the given ones, in log order.

    Raises LogDamaged at the end if the journal is damaged, and OSError if it cannot be read.
    """
    report = verify_journal(folder)
    for segment in report.segments:
        path = folder / segment.file
        # A segment that the coordinator removed meanwhile has no needed records.
        with suppress(FileNotFoundError):
            data = memoryview(path.read_bytes())
            first_position = layout.first_position(report.state_partitions)
            found = read_frames(
                data, segment.number, first_position, segment.used_bytes, segment.first_commit
            )
            for frame in found:
                yield from _decode_batches(segment.file, frame, state_partitions)
    if report.damage is not None:
        raise report.damage


async def inspect_journal(disk: Disk, *, count_records: bool = True) -> JournalReport:
    """Inspect a journal until two passes agree, or report it as changing after the last attempt.

    With `count_records`, all records are decoded, which dominates the cost. Raises FileNotFoundError if
    segments are removed during each pass.
    """
    previous_end: object = None
    for attempts_left in reversed(range(ATTEMPTS_MAX)):
        inspection, damage = await _inspect_with_repeats(disk, count_records)
        tail = inspection.walk.tail
        position: object = (damage.file, damage.position, damage.found) if damage is not None else tail
        if position == previous_end or (damage is None and (tail is None or tail.is_clean)):
            return inspection.report(damage, is_changing=False)
        if not attempts_left:
            return inspection.report(None, is_changing=True)
        previous_end = position
    raise AssertionError("the last attempt returns or raises")


class _Inspection:
    """One pass over the journal: its walk, and the number of records by file."""

    def __init__(self, disk: Disk, count_records: bool) -> None:
        self._describe = disk.describe
        self.walk = SegmentWalk(disk, None, self._visit_frame if count_records else None)
        self.records: dict[str, int] = {}

    def _visit_frame(self, name: str, frame: layout.Frame) -> None:
        count = self.records.get(name, 0)
        try:
            count += sum(len(dumped.batch.records) for dumped in _decode_batches(name, frame, None))
        except DecodeError as error:
            raise LogDamaged(self._describe(name), frame.begin, str(error), ADVICE) from None
        self.records[name] = count

    def report(self, damage: LogDamaged | None, *, is_changing: bool) -> JournalReport:
        walk = self.walk
        headers = {segment.name: segment.header for segment in walk.with_header}
        segments = [
            SegmentReport(
                file=segment.name,
                number=segment.number,
                size_bytes=segment.size_bytes,
                used_bytes=segment.end,
                first_commit=headers[segment.name].first_commit,
                commits=segment.last_commit - headers[segment.name].first_commit + 1,
                records=self.records.get(segment.name, 0),
            )
            for segment in walk.scan.segments
        ]
        tail = walk.tail
        torn = tail is not None and not tail.is_clean and not is_changing
        return JournalReport(
            folder=self._describe(""),
            state_partitions=walk.state_partitions or 0,
            segments=segments,
            start_offsets=walk.scan.start_offsets,
            end_offsets=walk.scan.end_offsets,
            unused_files=[*walk.dropped, *walk.cut_off, *walk.headerless],
            torn_tail=TornTail(tail.name, tail.position, tail.lost_commits) if tail and torn else None,
            recovery_point=walk.recovery_point.commit if walk.recovery_point is not None else None,
            is_changing=is_changing,
            damage=damage,
        )


async def _inspect_with_repeats(disk: Disk, count_records: bool) -> tuple[_Inspection, LogDamaged | None]:
    for _ in range(REMOVALS_MAX - 1):
        with suppress(FileNotFoundError):
            return await _inspect_once(disk, count_records)
    return await _inspect_once(disk, count_records)


async def _inspect_once(disk: Disk, count_records: bool) -> tuple[_Inspection, LogDamaged | None]:
    inspection = _Inspection(disk, count_records)
    try:
        await inspection.walk.run()
    except LogDamaged as damage:
        if not inspection.walk.scan.segments:
            await _scan_before_damage(inspection.walk, disk, damage)
        return inspection, damage
    return inspection, None


async def _scan_before_damage(walk: SegmentWalk, disk: Disk, damage: LogDamaged) -> None:
    """Scan the segments before a file whose damage at byte 0 prevented the scan."""
    good = [segment for segment in walk.with_header if disk.describe(segment.name) < damage.file]
    walk.scan = SegmentScan(good, walk.state_partitions or 0, disk.describe, walk.recovery_point)
    with suppress(LogDamaged):
        for name, _ in good:
            walk.scan.scan_segment(memoryview(await disk.read(name, 0, disk.size(name))), walk.visit)


def _decode_batches(
    file: str, frame: layout.Frame, state_partitions: Collection[int] | None
) -> Iterator[DumpedBatch]:
    """Decode the batches of a commit. Raises DecodeError, which indicates damage despite a valid checksum."""
    position = frame.begin + layout.HEAD_BYTES
    for state_partition, batch in layout.decode_entries(frame):
        position += layout.ENTRY_HEAD_BYTES
        if state_partitions is None or state_partition in state_partitions:
            for decoded in decode_batches(batch):
                yield DumpedBatch(file, position, frame.commit, state_partition, decoded)
        position += len(batch)
