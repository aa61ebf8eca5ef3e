"""Read and commit an archive: Parquet files with records that were copied before they were pruned.

An archive is in a directory or below a prefix of an object store. It has these files:

* `commits/00000001.json` is the first *commit*. It names the record files of one copy, and is written last.
* `commits/00000001-00000288.json` is a merged commit, which replaces 288 (`coordinator.recovery.compaction`).
* `records/00000001-0.parquet` has rows of `RECORDS`, and one state partition in each row group. Readers
  ignore record files that no commit names.

A *contiguous copy* is a range of log offsets of a state partition that was copied without a gap. If records
were pruned before they were copied, a new contiguous copy begins. The new contiguous copy has the complete
state, because pruning removes only records that later snapshots replace. A reader uses the last contiguous
copy that begins below the cut.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import msgspec
import pyarrow as pa

from coordinator.errors import ConfigError, LogDamaged
from coordinator.recovery.folders import Folder, open_folder
from coordinator.recovery.records import Records, records_from_arrow
from coordinator.recovery.schema import NONE
from coordinator.recovery.sources.base import (
    END,
    LogCut,
    LogRange,
    ReadPlan,
    offsets_after_time,
)
from coordinator.recovery.sources.checkpoints import StoredCheckpoints, StoredStatesLocation
from coordinator.recovery.verdict import LogCopy

COMMITS, FILES = "commits", "records"
FORMAT = 1


class RowGroup(msgspec.Struct, frozen=True):
    """One row group of a file: the records of one state partition from `start` to `end` (exclusive).

    `last_ms` is the latest timestamp of the records; -1 if it is not known.
    """

    state_partition: int
    start: int
    end: int
    records: int
    file: str
    row_group: int
    last_ms: int = NONE


class Commit(msgspec.Struct, frozen=True, rename={"number": "commit"}):
    """A commit file: the row groups, the log start offset and the copied end offset of each state partition.

    If a log start offset is above the end offset in the previous commit, a new contiguous copy begins. A
    merged commit replaces the commits from `first` to `number` (inclusive). Its `whole_from` maps each state
    partition to the end offset in the first of these commits that has the state partition.
    """

    number: int
    source: str
    at_ms: int
    starts: dict[int, int]
    ends: dict[int, int]
    pieces: tuple[RowGroup, ...]
    # The ids of the log (cluster id, topic id), and the CRC-32C of each state partition's last copied record.
    identity: dict[str, str] = {}
    digests: dict[int, int] = {}
    first: int = 0
    whole_from: dict[int, int] = {}
    format: int = FORMAT

    def __post_init__(self) -> None:
        if not self.first:
            msgspec.structs.force_setattr(self, "first", self.number)


def commit_files(folder: Folder) -> dict[tuple[int, int], str]:
    """Return the commit files by the numbers of the first and the last commit that each contains."""
    found = {}
    for name in (folder / COMMITS).names():
        first, _, last = name.removesuffix(".json").partition("-")
        if first.isdigit() and (last or first).isdigit():
            found[int(first), int(last or first)] = name
    return found


def next_commit_number(commits: Sequence[Commit]) -> int:
    """Return the number of the archive's next commit."""
    return commits[-1].number + 1 if commits else 1


def read_commits(folder: Folder) -> list[Commit]:
    """Return all commits of an archive, oldest first; none if there is no archive. Raises LogDamaged."""
    path = folder / COMMITS
    # The greatest last number of a commit by its first number; smaller ranges of numbers were merged into it.
    longest: dict[int, int] = {}
    names = commit_files(folder)
    for first, last in names:
        longest[first] = max(last, longest.get(first, 0))
    wanted: list[str] = []
    number = 1
    while number <= max(longest, default=0):
        if number not in longest:
            raise LogDamaged(f"{path}/{number:08d}.json", 0, "the commit is missing", _ADVICE)
        wanted.append(names[number, longest[number]])
        number = longest[number] + 1
    found: list[Commit] = []
    for name, data in zip(wanted, path.read_all(wanted), strict=True):
        entry = f"{path}/{name}"
        try:
            commit = msgspec.json.decode(data, type=Commit)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise LogDamaged(entry, 0, f"it is no commit of an archive ({error})", _ADVICE) from None
        if commit.format != FORMAT:
            raise LogDamaged(entry, 0, f"it has format {commit.format}", "use a release that knows it")
        found.append(commit)
    return found


def write_commit(folder: Folder, commit: Commit) -> None:
    """Write a commit file durably; the record files that it names must be durable already.

    Raises FileExistsError if another job has written a commit file with this number.
    """
    said, name = msgspec.to_builtins(commit), f"{commit.number:08d}"
    if commit.first == commit.number:
        del said["first"], said["whole_from"]
    else:
        name = f"{commit.first:08d}-{name}"
    (folder / COMMITS).create(f"{name}.json", msgspec.json.encode(said))


def read_row_group(folder: Folder, file: str, row_group: int, state_partition: int) -> Iterator[Records]:
    """Yield the records of a row group. Raises LogDamaged."""
    files = folder / FILES
    try:
        with files.open_parquet(file) as opened:
            for rows in opened.read_row_group(row_group).to_batches():
                yield from records_from_arrow(rows)
    except (OSError, ValueError, pa.ArrowException) as error:
        raise LogDamaged(f"{files}/{file}", 0, str(error), _ADVICE, state_partition) from None


@dataclass(frozen=True)
class ArchiveSource:
    """An archive at a path or URI.

    Set `use_checkpoints` only to rebuild states: a plan then begins with a state checkpoint.
    """

    folder: str
    use_checkpoints: bool = False

    @property
    def text(self) -> str:
        """The source as the value of the option --from."""
        return f"archive:{self.folder}"

    def identity(self) -> dict[str, str]:
        """Return the identity of the log that was copied."""
        commits = read_commits(open_folder(self.folder))
        return dict(commits[-1].identity) if commits else {}

    def as_log_copy(self) -> LogCopy:
        """Return the last contiguous copy of each state partition, and the log offsets that it lacks."""
        copies = {number: each[-1] for number, each in contiguous_copies(self._read_commits()).items()}
        return LogCopy(
            self.text,
            {number: copied.start for number, copied in copies.items()},
            {number: copied.end for number, copied in copies.items()},
            {
                number: missing_offsets(copied.pieces, copied.start, copied.end)
                for number, copied in copies.items()
            },
        )

    def plan(self, cut: LogCut) -> ReadPlan:
        """Choose a contiguous copy of each state partition; its row groups are one log range."""
        folder, commits = open_folder(self.folder), self._read_commits()
        copies = contiguous_copies(commits)
        if cut.time_ms is not None:
            cut = LogCut(self._offsets_after_time(copies, cut.time_ms))
        ranges: list[LogRange] = []
        starts: dict[int, int] = {}
        ends: dict[int, int] = {}
        whole_from: dict[int, int] = {}
        checkpoints = StoredCheckpoints(folder) if self.use_checkpoints else None
        for number, of_partition in sorted(copies.items()):
            until = cut.end(number)
            # If the cut is in a gap of log offsets, use the contiguous copy before the gap.
            copied = [each for each in of_partition if each.start < until or each is of_partition[0]][-1]
            starts[number], whole_from[number] = copied.start, copied.whole_from
            ends[number] = max(min(copied.end, until), copied.start)
            begin = max(cut.start(number), copied.start)
            stored = None
            if checkpoints is not None:
                stored = checkpoints.latest(number, copied.start, ends[number])
                begin = begin if stored is None else stored.summary["range_end"]
            found = _make_range(number, copied.pieces, begin, ends[number], stored)
            if found.place or stored is not None:
                ranges.append(found)
        return ReadPlan(
            tuple(ranges), starts, ends, facts={"commits": commits[-1].number}, whole_from=whole_from
        )

    def _read_commits(self) -> list[Commit]:
        commits = read_commits(open_folder(self.folder))
        if not commits:
            raise ConfigError("archive", self.folder, "the folder of an archive (it has none)")
        return commits

    def _offsets_after_time(
        self, copies: Mapping[int, Sequence["ContiguousCopy"]], time_ms: int
    ) -> dict[int, int]:
        """Return for each state partition the log offset of the first record after a time.

        Only row groups that may have a record after that time are read.
        """
        found: dict[int, int] = {}
        for number, of_partition in copies.items():
            pieces = [
                piece
                for copied in of_partition
                for piece in copied.pieces
                if piece.last_ms > time_ms or piece.last_ms < 0
            ]
            log_range = _make_range(number, pieces, 0, END)
            later = offsets_after_time(self, ReadPlan((log_range,), {}, {}), time_ms)
            found[number] = later.get(number, END)
        return found

    def read(self, log_range: LogRange) -> Iterator[Records]:
        """Yield the records of the range's row groups."""
        folder = open_folder(self.folder)
        for name, row_group, start, end in log_range.place:
            if end <= log_range.start or start >= log_range.end:
                continue
            for records in read_row_group(folder, name, row_group, log_range.state_partition):
                within = records.select_offsets(log_range.start, log_range.end)
                if len(within):
                    yield within


class ContiguousCopy(NamedTuple):
    """Row groups of a state partition whose log offsets have no gap.

    `whole_from` is the end offset of the log when the first of these row groups was copied.
    """

    start: int
    end: int
    whole_from: int
    pieces: list[RowGroup]


def contiguous_copies(commits: Sequence[Commit]) -> dict[int, list[ContiguousCopy]]:
    """Return the contiguous copies of each state partition, in the order of their commits."""
    found: dict[int, list[ContiguousCopy]] = {}
    for commit in commits:
        for number, end in commit.ends.items():
            of_partition = found.setdefault(number, [])
            if not of_partition or commit.starts[number] > of_partition[-1].end:
                whole_from = commit.whole_from.get(number, end)
                of_partition.append(ContiguousCopy(commit.starts[number], end, whole_from, []))
            else:
                of_partition[-1] = of_partition[-1]._replace(end=end)
        for piece in commit.pieces:
            found[piece.state_partition][-1].pieces.append(piece)
    return found


def missing_offsets(pieces: Iterable[RowGroup], start: int, end: int) -> list[tuple[int, int]]:
    """Return the ranges (inclusive) of log offsets from `start` to `end` that row groups lack.

    Earlier releases wrote row groups that have gaps; all offsets of such a row group are in the result.
    """
    found = []
    for piece in sorted(pieces, key=lambda piece: piece.start):
        if piece.start > start:
            found.append((start, piece.start - 1))
        if piece.records < piece.end - piece.start:
            found.append((piece.start, piece.end - 1))
        start = max(start, piece.end)
    return [*found, (start, end - 1)] if start < end else found


def _make_range(
    state_partition: int,
    pieces: Sequence[RowGroup],
    begin: int,
    until: int,
    stored: StoredStatesLocation | None = None,
) -> LogRange:
    """Return the log range of the records of these row groups between two log offsets."""
    wanted = [piece for piece in pieces if piece.end > begin and piece.start < until]
    place = tuple((piece.file, piece.row_group, piece.start, piece.end) for piece in wanted)
    records = sum(piece.records for piece in wanted)
    return LogRange(state_partition, begin, until, records, place, stored=stored, row_groups=len(wanted))


_ADVICE = "restore the archive from a backup"
