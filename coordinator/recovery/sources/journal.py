"""Our journal, from outside: read only, without its lock, also while a coordinator writes to it.

What is read is what the journal held when the plan was made: frames are only ever added behind that, and
whole leading segments removed.  If one of those is gone when it is its turn, the plan is made anew: a
deletion in it may concern what was read from the segments before it.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from coordinator.errors import ConfigError, LogDamaged
from coordinator.log.journal import layout
from coordinator.log.journal.disk import RealDisk
from coordinator.log.journal.inspect import JournalReport, look
from coordinator.log.journal.scan import ADVICE, frames
from coordinator.recovery.parse import parse_readable
from coordinator.recovery.records import Records
from coordinator.recovery.sources.base import (
    ALL,
    END,
    RANGE_RECORDS,
    Cut,
    LogRange,
    Plan,
    Pruned,
    ends_after,
    run_apart,
)

# Batches that are parsed together, of all state partitions.
_PARSE_BYTES = 8 << 20
_RECORD_BYTES = 160


@dataclass(frozen=True)
class JournalSource:
    """A journal's folder: data.dir."""

    folder: str

    @property
    def text(self) -> str:
        """The source as a user writes it."""
        return f"journal:{self.folder}"

    def plan(self, cut: Cut, *, range_records: int = RANGE_RECORDS) -> Plan:
        """Look at the journal; its segments are the ranges."""
        if not Path(self.folder).is_dir():
            raise ConfigError("journal", self.folder, "a folder that exists")
        report = run_apart(look(RealDisk(Path(self.folder)), count_records=False))
        if report.damage is not None:
            raise report.damage
        if not report.segments and not report.unused_files:
            raise ConfigError("journal", self.folder, "the folder of a journal (it has none)")
        starts = [cut.start(partition) for partition in range(report.state_partitions)]
        ends = {partition: min(end, cut.end(partition)) for partition, end in enumerate(report.end_offsets)}
        plan = Plan(
            tuple(self._ranges(report, starts, ends)),
            dict(enumerate(report.start_offsets)),
            ends,
            notes=("a coordinator was writing to it",) if report.in_motion else (),
        )
        if cut.time_ms is None:
            return plan
        later = ends_after(self, plan, cut.time_ms)
        ends = {partition: min(end, later.get(partition, END)) for partition, end in ends.items()}
        return replace(plan, ranges=tuple(self._ranges(report, starts, ends)), ends=ends)

    def _ranges(
        self, report: JournalReport, starts: Sequence[int], ends: Mapping[int, int]
    ) -> Iterator[LogRange]:
        for segment in report.segments:
            place = (
                *(segment.file, segment.number, segment.used_bytes, segment.first_commit),
                *(report.state_partitions, tuple(starts), tuple(ends[p] for p in range(len(starts)))),
            )
            yield LogRange(ALL, 0, END, segment.used_bytes // _RECORD_BYTES, place)

    def read(self, log_range: LogRange) -> Iterator[Records]:
        """Give the records of a segment."""
        file, number, used_bytes, first_commit, state_partitions, starts, ends = log_range.place
        path = Path(self.folder) / file
        try:
            data = memoryview(path.read_bytes())[:used_bytes]
        except FileNotFoundError:
            raise Pruned(ALL, 0) from None
        position = layout.first_position(state_partitions)
        waiting: dict[int, list[bytes]] = {}
        waiting_bytes = 0
        for frame in frames(data, number, position, used_bytes, first_commit):
            for state_partition, batch in layout.entries_of(frame):
                waiting.setdefault(state_partition, []).append(batch)
                waiting_bytes += len(batch)
            position = frame.end
            if waiting_bytes >= _PARSE_BYTES:
                yield from _parsed(waiting, starts, ends, path, position)
                waiting, waiting_bytes = {}, 0
        yield from _parsed(waiting, starts, ends, path, position)
        if position < used_bytes:
            raise LogDamaged(path, position, "a commit that was valid is not valid any more", ADVICE)


def _parsed(
    waiting: Mapping[int, list[bytes]],
    starts: Sequence[int],
    ends: Sequence[int],
    path: Path,
    position: int,
) -> Iterator[Records]:
    damage: LogDamaged | None = None
    for state_partition, batches in waiting.items():
        found = parse_readable(state_partition, b"".join(batches))
        records = found.records.between(starts[state_partition], ends[state_partition])
        if len(records):
            yield records
        is_past = found.records.reaches(ends[state_partition])
        if found.used_bytes != sum(map(len, batches)) and not is_past:
            why = found.found or "a batch is cut off"
            damage = damage or LogDamaged(path, position, why, ADVICE, state_partition)
    if damage is not None:
        raise damage
