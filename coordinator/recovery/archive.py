"""Copy the new records of a log to an archive, before pruning removes them (`recovery archive`).

Run this job more often than the log is pruned (every five minutes by default).  The job creates its commit
file last. If it dies before, its record files are ignored.  Of two concurrent jobs, only one can create the
commit, and the other fails.

An archive belongs to one log.  A log is recognised by its ids (cluster and topic) and by the last copied
record, which the next job reads again and expects to be unchanged.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, groupby
from operator import attrgetter
from uuid import uuid4  # noqa: TID251

import msgspec
from crc32c import crc32c

from coordinator.errors import ConfigError, LogError, LogUnavailable
from coordinator.process.clock import Clock, SystemClock
from coordinator.recovery.compaction import compact
from coordinator.recovery.folders import Folder, Location, open_folder
from coordinator.recovery.record_files import RecordFileWriter
from coordinator.recovery.records import Damage, Records
from coordinator.recovery.sources.archive import (
    FILES,
    Commit,
    RowGroup,
    next_commit_number,
    read_commits,
    write_commit,
)
from coordinator.recovery.sources.base import ALL, END, LogCut, LogRange, PrunedError, ReadPlan, Source

_ATTEMPTS_MAX = 5
# Records that are sorted by state partition, because a row group has one state partition.
_MIXED_RECORDS_MAX = 2_000_000
_STATE_PARTITION = attrgetter("state_partition")


@dataclass(frozen=True)
class ArchiveResult:
    """The result of an archive job.

    `gaps` are state partitions with records that were pruned before they were copied. A gap is a pair of log
    offsets: the end of the previous copy, and the start of the current copy. `damages` are unreadable log
    ranges.
    """

    commit: int
    records: int
    ends: Mapping[int, int]
    gaps: Mapping[int, tuple[int, int]]
    damages: Sequence[Damage] = ()

    @property
    def is_whole(self) -> bool:
        """Return whether every record since the previous copy was copied."""
        return not self.gaps and not self.damages


class CopyResult(msgspec.Struct, frozen=True):
    """The files and log ranges that one job copied.

    `is_verified` is true if a record that an earlier job copied is unchanged in the log. `replaced` is the
    (state partition, log offset) of such a record that has changed.
    """

    pieces: list[RowGroup]
    starts: dict[int, int]
    ends: dict[int, int]
    digests: dict[int, int]
    damages: list[Damage]
    is_verified: bool
    replaced: tuple[int, int] | None = None


def archive(source: Source, location: Location, *, clock: Clock | None = None) -> ArchiveResult:
    """Copy the new records to the archive at a path or URI, and commit them.

    Raises ConfigError, LogError or OSError; the archive is then unchanged.
    """
    clock, folder = clock or SystemClock(), open_folder(location)
    commits = read_commits(folder)
    identity = source.identity()
    if commits:
        check_identity(source, folder, commits[-1].identity, identity)
    known = copied_end_offsets(commits)
    for _ in range(_ATTEMPTS_MAX):
        # Start with the last copied record, to check that it is unchanged.
        plan = source.plan(LogCut(since={p: max(end - 1, 0) for p, end in known.items()}))
        _check_no_records_lost(source, plan, known)
        try:
            copied = _copy_records(source, plan, folder, commits)
            break
        except PrunedError:
            # Records were pruned before they could be copied; plan again and copy the remaining ones.
            continue
    else:
        raise LogUnavailable(f"{source.text} is pruned faster than it can be copied")
    done = commit_copied(folder, source, identity, commits, copied, plan.starts, plan.ends, clock)
    compact(folder, clock.now_ms())
    return done


def commit_copied(
    folder: Folder,
    source: Source,
    identity: Mapping[str, str],
    commits: Sequence[Commit],
    copied: CopyResult,
    starts: Mapping[int, int],
    ends: Mapping[int, int],
    clock: Clock,
) -> ArchiveResult:
    """Write the commit of a copy. `starts` and `ends` are the log's offsets when the copy was planned.

    Raises ConfigError if the log is not the archived log, or if no id, name or record confirms that it is.
    Raises LogError if another job has written this commit.
    """
    if copied.replaced:
        state_partition, offset = copied.replaced
        raise ConfigError(
            "--from",
            source.text,
            f"the log that {folder} is an archive of: log offset {offset} of state partition "
            f"{state_partition} is another record",
        )
    if commits and not copied.is_verified and not _is_same_log(commits[-1], source, identity):
        raise ConfigError(
            "--from",
            source.text,
            f"{commits[-1].source}, which {folder} is an archive of: neither a record nor an id of it "
            "is in both",
        )
    known = copied_end_offsets(commits)
    starts = {p: max(start, known.get(p, start)) for p, start in starts.items()}
    ends = {p: max(copied.ends.get(p, 0), ends.get(p, 0), starts[p]) for p in starts}
    gaps = {p: (known[p], start) for p, start in starts.items() if start > known.get(p, start)}
    digests = {**(commits[-1].digests if commits else {}), **copied.digests}
    pieces = tuple(copied.pieces)
    number = next_commit_number(commits)
    commit = Commit(number, source.text, clock.now_ms(), starts, ends, pieces, dict(identity), digests)
    try:
        write_commit(folder, commit)
    except FileExistsError:
        raise LogError(f"another run is writing to {folder}") from None
    damages = (*copied.damages, *missing_offsets(copied))
    return ArchiveResult(number, sum(piece.records for piece in pieces), ends, gaps, damages)


def missing_offsets(copied: CopyResult) -> list[Damage]:
    """Return the ranges of log offsets that are missing from the copy and that are not in a damaged part.

    A state log is not compacted, so its records have consecutive offsets.
    """
    found = []
    ordered = sorted(copied.pieces, key=lambda piece: piece.state_partition)
    for state_partition, group in groupby(ordered, key=lambda piece: piece.state_partition):
        pieces = list(group)
        first, last = min(piece.start for piece in pieces), max(piece.end for piece in pieces) - 1
        records = sum(piece.records for piece in pieces)
        if records != last + 1 - first and not any(
            each.state_partition == state_partition and each.first <= last and each.last >= first
            for each in copied.damages
        ):
            found.append(Damage(state_partition, first, last, f"these log offsets have {records} records"))
    return found


def check_identity(
    source: Source, folder: Folder, before: Mapping[str, str], identity: Mapping[str, str]
) -> None:
    """Raise ConfigError if the ids of a source differ from those of the archived log (`before`)."""
    for name, value in before.items():
        if identity.get(name, value) != value:
            raise ConfigError(
                "--from",
                source.text,
                f"the log that {folder} is an archive of: its {name} is {value}, not {identity[name]}",
            )


def _is_same_log(commit: Commit, source: Source, identity: Mapping[str, str]) -> bool:
    """Return whether the source has an id in common with the archived log, or the same name or path."""
    if commit.identity.keys() & identity.keys():
        return True
    kind, _, where = source.text.partition(":")
    kind_before, _, where_before = commit.source.partition(":")
    if kind != kind_before:
        return False
    return where == where_before or (
        kind != "kafka" and open_folder(where).resolved() == open_folder(where_before).resolved()
    )


def copied_end_offsets(commits: Sequence[Commit]) -> dict[int, int]:
    """Return the log offset up to which each state partition was copied."""
    known: dict[int, int] = {}
    for commit in commits:
        known.update(commit.ends)
    return known


def _check_no_records_lost(source: Source, plan: ReadPlan, known: Mapping[int, int]) -> None:
    """Raise LogError if the log ends before the last copied record: another log, or records were lost."""
    for state_partition, end in sorted(plan.ends.items()):
        if end < known.get(state_partition, 0):
            raise LogError(
                f"state partition {state_partition} of {source.text} ends at {end}, and records up to "
                f"{known[state_partition]} were copied from it: it is another log, or it lost records"
            )


def _copy_records(source: Source, plan: ReadPlan, folder: Folder, commits: Sequence[Commit]) -> CopyResult:
    """Write the records of a plan to files; stop if the last archived record has changed in the log."""
    copier = RecordCopier(folder, next_commit_number(commits), commits)
    try:
        for records in chain.from_iterable(_records_by_partition(source, each) for each in plan.ranges):
            copier.copy_records(records)
            if copier.replaced:
                break
    finally:
        copier.close()
    return copier.result()


class RecordCopier:
    """Writes new records to files, and checks that the last record copied before is unchanged."""

    def __init__(self, folder: Folder, number: int, commits: Sequence[Commit]) -> None:
        self._known = copied_end_offsets(commits)
        self._digests_before = commits[-1].digests if commits else {}
        # A repeated job or task writes files with new names; no commit names the files of the first attempt.
        self._writer = RecordFileWriter(folder / FILES, f"{number:08d}-{uuid4().hex}")
        self._starts: dict[int, int] = {}
        self._ends: dict[int, int] = {}
        self._digests: dict[int, int] = {}
        self._damages: list[Damage] = []
        self._is_verified = False
        self.replaced: tuple[int, int] | None = None

    def copy_records(self, records: Records) -> None:
        """Write the new records to files. The records of a state partition must come in log order."""
        number, end = records.state_partition, self._known.get(records.state_partition, 0)
        self._damages += [each for each in records.damages if each.last >= end]
        if len(records) and records.log_offset[0] == end - 1 and number in self._digests_before:
            if _record_digest(records, 0) != self._digests_before[number]:
                self.replaced = (number, end - 1)
                return
            self._is_verified = True
        fresh = records.between(end, END)
        if len(fresh):
            self._starts.setdefault(number, int(fresh.log_offset[0]))
            self._ends[number] = int(fresh.log_offset[-1]) + 1
            self._digests[number] = _record_digest(fresh, -1)
            self._writer.add_records(fresh)

    def close(self) -> None:
        """Close the files."""
        self._writer.close()

    def result(self) -> CopyResult:
        """Return what was copied, for the commit."""
        copied = (self._writer.pieces, self._starts, self._ends, self._digests, self._damages)
        return CopyResult(*copied, self._is_verified, self.replaced)


def _record_digest(records: Records, row: int) -> int:
    """Return the CRC-32C of a record's log offset, timestamp, key and value."""
    row %= len(records)
    head = f"{records.log_offset[row]},{records.timestamp_ms[row]}".encode()
    return crc32c(records.values.get(row) or b"", crc32c(records.keys.get(row) or b"", crc32c(head)))


def _records_by_partition(source: Source, log_range: LogRange) -> Iterator[Records]:
    read = source.read(log_range)
    return read if log_range.state_partition != ALL else group_by_partition(read)


def group_by_partition(chunks: Iterable[Records]) -> Iterator[Records]:
    """Yield records with many of one state partition after the other, but a limited number in memory."""
    found: list[Records] = []
    count = 0
    for records in chunks:
        found.append(records)
        count += len(records)
        if count >= _MIXED_RECORDS_MAX:
            yield from sorted(found, key=_STATE_PARTITION)
            found, count = [], 0
    yield from sorted(found, key=_STATE_PARTITION)
