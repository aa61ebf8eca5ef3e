"""Read the journal of a coordinator without its lock, also while the coordinator writes to it.

A job reads the frames that the journal has when the plan is made. A coordinator only appends frames and
deletes the oldest segments.  If a segment is deleted before it is read, the whole journal is planned and read
again, because a later segment may delete state that was read already.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from coordinator.errors import ConfigError, LogDamaged
from coordinator.log.journal import layout
from coordinator.log.journal.disk import RealDisk
from coordinator.log.journal.inspect import JournalReport, inspect_journal
from coordinator.log.journal.scan import ADVICE, read_frames, segment_number
from coordinator.recovery.parse import make_empty_records, parse_around_damage
from coordinator.recovery.records import Records
from coordinator.recovery.sources.base import (
    ALL,
    END,
    LogCut,
    LogRange,
    PrunedError,
    ReadPlan,
    offsets_after_time,
    run_coroutine_on_thread,
)
from coordinator.recovery.sources.salvage import (
    JournalSegmentFile,
    SalvagedJournal,
    SalvagedSegment,
    SegmentExtent,
    salvage,
    torn_tail_note,
)

# The bytes of record batches of all state partitions that are collected before they are parsed.
_PARSE_BYTES = 8 << 20
_RECORD_BYTES = 160
# The minimum number of records of a log range. Each range reads all segments and parses only the records of
# its state partitions, so small ranges would be inefficient.
_RANGE_RECORDS = 2_000_000
_RANGES_MAX = 8


class JournalPart(NamedTuple):
    """The segments of a journal, and the log offsets to read of some state partitions."""

    segments: tuple[SalvagedSegment, ...]
    starts: Mapping[int, int]
    ends: Mapping[int, int]


@dataclass(frozen=True)
class JournalSource:
    """The directory of a journal (the setting data.dir)."""

    folder: str

    @property
    def text(self) -> str:
        """The source as the value of the option --from."""
        return f"journal:{self.folder}"

    def identity(self) -> dict[str, str]:
        """Return an empty dict, because a journal has no id."""
        return {}

    def plan(self, cut: LogCut) -> ReadPlan:
        """Scan the journal, and skip damage. Each log range has several state partitions."""
        if not Path(self.folder).is_dir():
            raise ConfigError("journal", self.folder, "an existing directory")
        report = run_coroutine_on_thread(inspect_journal(RealDisk(Path(self.folder)), count_records=False))
        if report.damage is None:
            if not report.segments and not report.unused_files:
                raise ConfigError("journal", self.folder, "the folder of a journal (it has none)")
            found = _undamaged_parts(report)
        else:
            found = self._salvage_parts(report.damage)
        cut_ends = {partition: cut.end(partition) for partition in found.ends}
        ranges = tuple(_make_ranges(found, cut, cut_ends))
        if cut.time_ms is not None:
            cut_ends |= offsets_after_time(self, ReadPlan(ranges, {}, {}), cut.time_ms)
            ranges = tuple(_make_ranges(found, cut, cut_ends))
        ends = {partition: min(end, cut_ends[partition]) for partition, end in found.ends.items()}
        return ReadPlan(ranges, found.starts, ends, notes=tuple(found.notes))

    def _salvage_parts(self, damage: LogDamaged) -> SalvagedJournal:
        """Return the valid parts of a damaged journal. Raises LogDamaged if no segment header is valid."""
        files = []
        for path in sorted(Path(self.folder).iterdir()):
            number = segment_number(path.name)
            if number is not None:
                data = path.read_bytes()
                files.append(JournalSegmentFile(path.name, number, _read_header(data), memoryview(data)))
        counts = [len(each.header.end_offsets) for each in files if each.header is not None]
        if not counts:
            raise damage
        found = salvage(files, counts[0])
        found.notes.insert(0, f"the journal is damaged and was read around the damage: {damage.found}")
        return found

    def read(self, log_range: LogRange) -> Iterator[Records]:
        """Yield the records of a range, one segment after the other."""
        part: JournalPart = log_range.place
        for segment in part.segments:
            yield from self._read_segment(segment, part.starts, part.ends)

    def _read_segment(
        self, segment: SalvagedSegment, starts: Mapping[int, int], ends: Mapping[int, int]
    ) -> Iterator[Records]:
        path = Path(self.folder) / segment.file
        try:
            data = memoryview(path.read_bytes())
        except FileNotFoundError:
            raise PrunedError(ALL, 0) from None
        waiting: dict[int, list[bytes]] = {}
        waiting_bytes = 0

        def parse_waiting() -> Iterator[Records]:
            for number, batches in waiting.items():
                for records in parse_around_damage(
                    number, b"".join(batches), starts[number], ends[number], segment.file
                ):
                    if len(records) or records.damages:
                        yield records

        for state_partition, batch in _iterate_batches(data, segment, path):
            if state_partition not in starts:
                continue
            waiting.setdefault(state_partition, []).append(batch)
            waiting_bytes += len(batch)
            if waiting_bytes >= _PARSE_BYTES:
                yield from parse_waiting()
                waiting, waiting_bytes = {}, 0
        yield from parse_waiting()
        for damage in segment.damages:
            number = damage.state_partition
            if number in starts and starts[number] <= damage.last and damage.first < ends[number]:
                yield replace(make_empty_records(number), damages=(damage,))


def _read_header(data: bytes) -> layout.SegmentHeader | None:
    try:
        return layout.decode_header(data)
    except ValueError:
        return None


def _undamaged_parts(report: JournalReport) -> SalvagedJournal:
    """Convert the scan report of an undamaged journal to the type that `salvage` returns."""
    found = SalvagedJournal(
        starts=dict(enumerate(report.start_offsets)), ends=dict(enumerate(report.end_offsets))
    )
    first = layout.first_position(report.state_partitions)
    for each in report.segments:
        extent = SegmentExtent(first, each.used_bytes, each.first_commit)
        found.segments.append(SalvagedSegment(each.file, each.number, [extent]))
    if report.is_changing:
        found.notes.append("a coordinator was writing to it")
    if report.torn_tail is not None:
        found.notes.append(torn_tail_note(report.torn_tail.file, report.torn_tail.position))
    return found


def _make_ranges(found: SalvagedJournal, cut: LogCut, ends: Mapping[int, int]) -> Iterator[LogRange]:
    """Divide the journal into log ranges: by state partition, or by segment if all records are copied."""
    segments = tuple(found.segments)
    starts = {partition: cut.start(partition) for partition in found.starts}
    if cut.since is not None:
        for each in segments:
            yield LogRange(ALL, 0, END, _estimate_records((each,)), JournalPart((each,), starts, ends))
        return
    records = _estimate_records(segments)
    count = min(max(records // _RANGE_RECORDS, 1), _RANGES_MAX)
    for number in range(count):
        own = [partition for partition in sorted(starts) if partition % count == number]
        part = JournalPart(segments, {p: starts[p] for p in own}, {p: ends[p] for p in own})
        yield LogRange(ALL, 0, END, records // count, part)


def _estimate_records(segments: Sequence[SalvagedSegment]) -> int:
    used_bytes = sum(extent.end - extent.begin for each in segments for extent in each.extents)
    return used_bytes // _RECORD_BYTES


def _iterate_batches(data: memoryview, segment: SalvagedSegment, path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield state partition and bytes of each record batch. Raises LogDamaged."""
    number = segment.number
    for extent in segment.extents:
        if extent.state_partition >= 0:
            yield extent.state_partition, bytes(data[extent.begin : extent.end])
            continue
        position = extent.begin
        for frame in read_frames(data[: extent.end], number, position, extent.end, extent.commit):
            yield from layout.decode_entries(frame)
            position = frame.end
        if position < extent.end:
            raise LogDamaged(path, position, "a commit that was valid is not valid any more", ADVICE)
