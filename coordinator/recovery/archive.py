"""Copy the new records of a log to an archive, before pruning removes them (`recovery archive`).

Run this job more often than the log is pruned (every five minutes by default). The job writes the record
files first, and then the commit file that names them. Readers ignore record files that no commit file names.
Of two concurrent jobs, only one can create the next commit file, and the other job fails.

An archive belongs to one log. A job recognises this log by its cluster id and topic id, and by the last
copied record, which must be unchanged.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from uuid import uuid4  # noqa: TID251

import msgspec
from crc32c import crc32c

from coordinator.errors import ConfigError, LogError, LogUnavailable
from coordinator.process.clock import Clock, SystemClock
from coordinator.recovery.compaction import compact
from coordinator.recovery.folders import Folder, Location, open_folder
from coordinator.recovery.record_files import RecordFileWriter
from coordinator.recovery.records import Damage, Records, add_gaps, make_gap
from coordinator.recovery.sources.archive import (
    FILES,
    Commit,
    RowGroup,
    missing_offsets,
    next_commit_number,
    read_commits,
    write_commit,
)
from coordinator.recovery.sources.base import ALL, END, LogCut, PrunedError, ReadPlan, Source

_ATTEMPTS_MAX = 5
# Maximum number of records in memory to sort by state partition, because a row group has one state partition.
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

    @property
    def lost_records(self) -> int:
        """The number of log offsets that were not copied."""
        missing = sum(end - begin for begin, end in self.gaps.values())
        return missing + sum(each.last + 1 - each.first for each in self.damages)


class CopyResult(msgspec.Struct, frozen=True):
    """The files that one job or one Spark task copied.

    `last` maps each state partition to the log offset and the digest of its last copied record. `is_verified`
    is true if a record that an earlier job copied is unchanged in the log. `replaced` is the (state
    partition, log offset) of a record that has changed since an earlier job copied it.
    """

    pieces: list[RowGroup]
    last: dict[int, tuple[int, int]]
    damages: list[Damage]
    is_verified: bool = False
    replaced: tuple[int, int] | None = None

    @property
    def is_empty(self) -> bool:
        """Whether the job found neither records nor damage."""
        return not (self.pieces or self.damages or self.replaced)

    def starts(self) -> dict[int, int]:
        """Return the log offset of the first copied record of each state partition."""
        starts: dict[int, int] = {}
        for piece in self.pieces:
            starts[piece.state_partition] = min(piece.start, starts.get(piece.state_partition, END))
        return starts

    def missing_offsets(self, starts: Mapping[int, int]) -> list[Damage]:
        """Return the log offsets between `starts` and the last copied records that are missing.

        Without those that are reported as damage.
        """
        found: list[Damage] = []
        for number, (last, _) in sorted(self.last.items()):
            own = [piece for piece in self.pieces if piece.state_partition == number]
            gaps = [make_gap(number, *each) for each in missing_offsets(own, starts[number], last + 1)]
            damages = [each for each in self.damages if each.state_partition == number]
            found += add_gaps(damages, gaps)[len(damages) :]
        return found


def archive(source: Source, location: Location, *, clock: Clock | None = None) -> ArchiveResult:
    """Copy the new records of a log to the archive at a path or URI, and write their commit file.

    Raises ConfigError, LogError or OSError; the archive is then unchanged.
    """
    writer = ArchiveWriter(source, location, clock)
    commits = writer.read_commits()
    known = copied_end_offsets(commits)
    for _ in range(_ATTEMPTS_MAX):
        # Start with the last copied record, to check that it is unchanged.
        plan = source.plan(LogCut(since={p: max(end - 1, 0) for p, end in known.items()}))
        _check_no_records_lost(source, plan, known)
        try:
            copied = copy_records(writer.folder, commits, _records_by_partition(source, plan))
            return writer.commit(commits, copied, plan.starts, plan.ends)
        except PrunedError:
            # Records were pruned before they could be copied; plan again and copy the remaining ones.
            continue
    raise LogUnavailable(f"{source.text} is pruned faster than it can be copied")


def archive_lag(source: Source, location: Location) -> int:
    """Return the number of records of a log that an archive lacks, without those that were pruned.

    For segment files, return 0, because their end offset is known only after reading. Raises ConfigError,
    LogError, OSError.
    """
    plan, known = source.plan(LogCut()), copied_end_offsets(read_commits(open_folder(location)))
    return sum(max(end - max(known.get(p, 0), plan.starts[p]), 0) for p, end in plan.ends.items())


class ArchiveWriter:
    """Commits copies of a log to its archive, at a path or URI."""

    def __init__(self, source: Source, location: Location, clock: Clock | None = None) -> None:
        self.folder = open_folder(location)
        self._source = source
        self._identity = source.identity()
        self._clock = clock or SystemClock()

    def read_commits(self) -> list[Commit]:
        """Return the commits of the archive. Raises ConfigError if they are of another log."""
        commits = read_commits(self.folder)
        for name, value in commits[-1].identity.items() if commits else ():
            if self._identity.get(name, value) != value:
                raise self._identity_error(f"its {name} is {value}, not {self._identity[name]}")
        return commits

    def _identity_error(self, reason: str) -> ConfigError:
        text = f"the log that {self.folder} is an archive of: {reason}"
        return ConfigError("--from", self._source.text, text)

    def find_copy_starts(self, known: Mapping[int, int], copied: CopyResult) -> dict[int, int]:
        """Return the log offset at which the copy of each state partition starts.

        It is the first copied record. If the log still has records between the copy before it (`known`) and
        this record, they were not pruned, and the copy starts where the log starts.
        """
        starts = copied.starts()
        if all(start <= known.get(number, 0) for number, start in starts.items()):
            return starts
        log_starts = self._source.plan(LogCut()).starts
        return {number: min(start, log_starts.get(number, start)) for number, start in starts.items()}

    def commit(
        self,
        commits: Sequence[Commit],
        copied: CopyResult,
        starts: Mapping[int, int],
        ends: Mapping[int, int],
    ) -> ArchiveResult:
        """Write the commit file of a copy, and merge the commit files of past days.

        `starts` and `ends` are the log's start and end offsets when the copy was planned. Raises ConfigError
        if the log is not the archived log, or if no id, name or record confirms that it is. Raises LogError
        if another job has written a commit file with this number.
        """
        if copied.replaced:
            number, offset = copied.replaced
            raise self._identity_error(f"log offset {offset} of state partition {number} is another record")
        if commits and not copied.is_verified and not self._is_same_log(commits[-1]):
            raise self._identity_error(
                f"neither a record nor an id of it is in both; it was {commits[-1].source}"
            )
        known = copied_end_offsets(commits)
        starts = {p: max(start, known.get(p, start)) for p, start in starts.items()}
        copied_ends = {p: offset + 1 for p, (offset, _) in copied.last.items()}
        commit = Commit(
            next_commit_number(commits),
            self._source.text,
            self._clock.now_ms(),
            starts,
            {p: max(copied_ends.get(p, 0), ends.get(p, 0), start) for p, start in starts.items()},
            tuple(copied.pieces),
            self._identity,
            last_record_digests(commits) | {p: digest for p, (_, digest) in copied.last.items()},
        )
        try:
            write_commit(self.folder, commit)
        except FileExistsError:
            raise LogError(f"another run is writing to {self.folder}") from None
        compact(self.folder, self._clock.now_ms())
        return ArchiveResult(
            commit.number,
            sum(piece.records for piece in copied.pieces),
            commit.ends,
            {p: (known[p], start) for p, start in starts.items() if start > known.get(p, start)},
            (*copied.damages, *copied.missing_offsets(starts)),
        )

    def _is_same_log(self, commit: Commit) -> bool:
        """Return whether the source has an id in common with the archived log, or the same name or path."""
        if commit.identity.keys() & self._identity.keys():
            return True
        kind, _, where = self._source.text.partition(":")
        kind_before, _, where_before = commit.source.partition(":")
        if kind != kind_before:
            return False
        return where == where_before or (
            kind != "kafka" and open_folder(where).resolved() == open_folder(where_before).resolved()
        )


def copied_end_offsets(commits: Sequence[Commit]) -> dict[int, int]:
    """Return the log offset up to which each state partition was copied."""
    return {p: end for commit in commits for p, end in commit.ends.items()}


def last_record_digests(commits: Sequence[Commit]) -> dict[int, int]:
    """Return the CRC-32C of each state partition's last copied record."""
    return dict(commits[-1].digests) if commits else {}


def _check_no_records_lost(source: Source, plan: ReadPlan, known: Mapping[int, int]) -> None:
    """Raise LogError if the log ends before the last copied record: it is another log, or it lost records."""
    for state_partition, end in sorted(plan.ends.items()):
        if end < known.get(state_partition, 0):
            raise LogError(
                f"state partition {state_partition} of {source.text} ends at {end}, and records up to "
                f"{known[state_partition]} were copied from it: it is another log, or it lost records"
            )


def copy_records(folder: Folder, commits: Sequence[Commit], chunks: Iterable[Records]) -> CopyResult:
    """Write the records after the last commit to files; check that the last copied record is unchanged.

    The records of a state partition must come in log order. If an earlier copied record has changed, no
    further records are copied.
    """
    known, digests = copied_end_offsets(commits), last_record_digests(commits)
    # A repeated job or task writes files with new names; no commit file names the files of the first attempt.
    writer = RecordFileWriter(folder / FILES, f"{next_commit_number(commits):08d}-{uuid4().hex}")
    copied = CopyResult(writer.pieces, {}, [])
    is_verified = False
    try:
        for records in chunks:
            number, end = records.state_partition, known.get(records.state_partition, 0)
            copied.damages.extend(each for each in records.damages if each.last >= end)
            if len(records) and records.log_offset[0] == end - 1 and number in digests:
                if _record_digest(records, 0) != digests[number]:
                    return msgspec.structs.replace(copied, replaced=(number, end - 1))
                is_verified = True
            new_records = records.select_offsets(end, END)
            if len(new_records):
                copied.last[number] = (int(new_records.log_offset[-1]), _record_digest(new_records, -1))
                writer.add_records(new_records)
    finally:
        writer.close()
    return msgspec.structs.replace(copied, is_verified=is_verified)


def _record_digest(records: Records, row: int) -> int:
    """Return the CRC-32C of a record's log offset, timestamp, key and value."""
    row %= len(records)
    head = f"{records.log_offset[row]},{records.timestamp_ms[row]}".encode()
    return crc32c(records.values.get(row) or b"", crc32c(records.keys.get(row) or b"", crc32c(head)))


def _records_by_partition(source: Source, plan: ReadPlan) -> Iterator[Records]:
    for log_range in plan.ranges:
        read = source.read(log_range)
        yield from read if log_range.state_partition != ALL else group_by_partition(read)


def group_by_partition(chunks: Iterable[Records]) -> Iterator[Records]:
    """Yield chunks of records sorted by state partition, so that each Parquet row group has many records."""
    found: list[Records] = []
    count = 0
    for records in chunks:
        found.append(records)
        count += len(records)
        if count >= _MIXED_RECORDS_MAX:
            yield from sorted(found, key=_STATE_PARTITION)
            found, count = [], 0
    yield from sorted(found, key=_STATE_PARTITION)
