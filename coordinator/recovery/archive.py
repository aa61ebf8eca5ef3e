"""The job `archive`: copies what is new on a log since the last copy, before pruning takes it.

Meant to be run again and again, more often than the log is pruned (every five minutes by default).  A run
that dies leaves nothing that counts: its commit is the last thing that it writes, and the next run copies the
same records again, to files of the same names.
"""

import fcntl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from coordinator.clock import Clock, SystemClock
from coordinator.errors import ConfigError, LogError, LogUnavailable
from coordinator.recovery.durable import sync_file, sync_folder
from coordinator.recovery.progress import Phases
from coordinator.recovery.records import Records
from coordinator.recovery.schema import RECORDS
from coordinator.recovery.sources.archive import FILES, Commit, Piece, read_commits, write_commit
from coordinator.recovery.sources.base import ALL, Cut, LogRange, Plan, Pruned, Source

# Of a file; and of a row group, which is read as a whole.
_FILE_RECORDS = 4_000_000
_GROUP_RECORDS = 1_000_000
_ATTEMPTS_MAX = 5
_LOCK = ".lock"


@dataclass(frozen=True)
class Archived:
    """What a run copied; `gaps` are state partitions of which records were pruned before they were copied.

    A gap is a pair of log offsets: up to where there was a copy, and from where it goes on.
    """

    commit: int
    records: int
    ends: Mapping[int, int]
    gaps: Mapping[int, tuple[int, int]]


def archive(
    source: Source, folder: Path, *, phases: Phases | None = None, clock: Clock | None = None
) -> Archived:
    """Copy what is new. Raises ConfigError, LogError, OSError; then nothing of it counts."""
    phases, clock = phases or Phases(), clock or SystemClock()
    (folder / FILES).mkdir(parents=True, exist_ok=True)
    with _locked(folder):
        commits = read_commits(str(folder))
        if commits and commits[-1].source != source.text:
            raise ConfigError("--from", source.text, f"{commits[-1].source}, which {folder} is an archive of")
        known = _known_ends(commits)
        number = len(commits) + 1
        for _ in range(_ATTEMPTS_MAX):
            plan = source.plan(Cut(since=known))
            _check_goes_on(source, plan, known)
            try:
                pieces, ends = _copy(source, plan, folder, number, phases)
                break
            except Pruned:
                # Faster than we are; what is left of it is copied.
                continue
        else:
            raise LogUnavailable(f"{source.text} is pruned faster than it can be copied")
        starts = {p: max(start, known.get(p, start)) for p, start in plan.starts.items()}
        ends = {p: max(ends.get(p, 0), plan.ends.get(p, 0), starts[p]) for p in starts}
        gaps = {p: (known[p], start) for p, start in starts.items() if start > known.get(p, start)}
        write_commit(str(folder), Commit(number, source.text, clock.now_ms(), starts, ends, tuple(pieces)))
    return Archived(number, sum(piece.records for piece in pieces), ends, gaps)


def _known_ends(commits: list[Commit]) -> dict[int, int]:
    known: dict[int, int] = {}
    for commit in commits:
        known.update(commit.ends)
    return known


def _check_goes_on(source: Source, plan: Plan, known: Mapping[int, int]) -> None:
    """Raise LogError for a log that is not the one that was copied, or lost records since."""
    for state_partition, end in sorted(plan.ends.items()):
        if end < known.get(state_partition, 0):
            raise LogError(
                f"state partition {state_partition} of {source.text} ends at {end}, and records up to "
                f"{known[state_partition]} were copied from it: it is another log, or it lost records"
            )


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Keep a second run away."""
    with (folder / _LOCK).open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise LogError(f"{folder} is written to by another run") from None
        yield


def _copy(
    source: Source, plan: Plan, folder: Path, number: int, phases: Phases
) -> tuple[list[Piece], dict[int, int]]:
    """Write the records of a plan to files; return what is where, and where each state partition ends."""
    writer = _Files(folder / FILES, number)
    ends: dict[int, int] = {}
    try:
        with phases.phase("copy", plan.records, "records") as advance:
            for log_range in plan.ranges:
                for records in _ordered(source, log_range):
                    if not len(records):
                        # Nothing but a write that broke off.
                        continue
                    ends[records.state_partition] = int(records.log_offset[-1]) + 1
                    writer.take(records)
                    advance(len(records))
    finally:
        writer.close()
    sync_folder(folder / FILES)
    return writer.pieces, ends


def _ordered(source: Source, log_range: LogRange) -> Iterator[Records]:
    """Give the records of a range, those of one state partition after the other."""
    if log_range.state_partition != ALL:
        yield from source.read(log_range)
        return
    found: dict[int, list[Records]] = {}
    for records in source.read(log_range):
        found.setdefault(records.state_partition, []).append(records)
    for state_partition in sorted(found):
        yield from found[state_partition]


class _Files:
    """Parquet files of one run, a row group for each stretch of a state partition."""

    def __init__(self, folder: Path, number: int) -> None:
        self.pieces: list[Piece] = []
        self._folder = folder
        self._number = number
        self._files = 0
        self._writer: pq.ParquetWriter | None = None
        self._path = folder
        self._row_groups = 0
        self._in_file = 0
        self._waiting: list[Records] = []
        self._waiting_records = 0

    def take(self, records: Records) -> None:
        """Add records; those of a state partition come in log order."""
        if self._waiting and (
            self._waiting[0].state_partition != records.state_partition
            or self._waiting_records + len(records) > _GROUP_RECORDS
        ):
            self._write_group()
        self._waiting.append(records)
        self._waiting_records += len(records)

    def _write_group(self) -> None:
        waiting, self._waiting = self._waiting, []
        if self._writer is None:
            self._path = self._folder / f"{self._number:08d}-{self._files}.parquet"
            self._writer = pq.ParquetWriter(self._path, RECORDS, compression="zstd")
            self._files += 1
            self._row_groups = self._in_file = 0
        table = pa.Table.from_batches([records.to_arrow() for records in waiting], RECORDS)
        self._writer.write_table(table, row_group_size=max(len(table), 1))
        self.pieces.append(
            Piece(
                state_partition=waiting[0].state_partition,
                start=int(waiting[0].log_offset[0]),
                end=int(waiting[-1].log_offset[-1]) + 1,
                records=len(table),
                file=self._path.name,
                row_group=self._row_groups,
            )
        )
        self._row_groups += 1
        self._in_file += len(table)
        self._waiting_records = 0
        if self._in_file >= _FILE_RECORDS:
            self._end_file()

    def _end_file(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None
            sync_file(self._path)

    def close(self) -> None:
        """Write what waits, and make all files durable."""
        if self._waiting:
            self._write_group()
        self._end_file()
