"""An archive: records copied to parquet before pruning takes them, and read from there.

A folder::

    commits/00000001.json     what the first copy added, written last: what no commit names does not count
    records/00000001-0.parquet    rows of the schema RECORDS, a row group for each state partition

A *stretch* of a state partition is copied without a gap.  Where pruning was faster than copying, another one
begins; it can be read by itself, because what was pruned was not needed any more.  A reader takes the last
stretch that begins below the cut.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from coordinator.errors import ConfigError, LogDamaged
from coordinator.recovery.durable import write_durably
from coordinator.recovery.records import Records, records_from_arrow
from coordinator.recovery.sources.base import END, RANGE_RECORDS, Cut, LogRange, Plan, ends_after
from coordinator.recovery.verdict import LogCopy

COMMITS, FILES = "commits", "records"
FORMAT = 1


@dataclass(frozen=True)
class Piece:
    """What one file has of one state partition: records between two log offsets, in one row group."""

    state_partition: int
    start: int
    end: int
    records: int
    file: str
    row_group: int


@dataclass(frozen=True)
class Commit:
    """One copy: `starts` are where each state partition's log began then, `ends` up to where it was copied.

    A state partition whose copy begins behind the end of the one before begins a new stretch.
    """

    number: int
    source: str
    at_ms: int
    starts: Mapping[int, int]
    ends: Mapping[int, int]
    pieces: tuple[Piece, ...]
    # Ids of the log (cluster id, topic id), and by state partition the digest of the last record copied.
    identity: Mapping[str, str] = field(default_factory=dict)
    digests: Mapping[int, int] = field(default_factory=dict)


def read_commits(folder: str) -> list[Commit]:
    """Return all commits of an archive, oldest first; none if there is no archive. Raises LogDamaged."""
    found = []
    path = Path(folder) / COMMITS
    if not path.is_dir():
        return []
    for entry in sorted(path.glob("*.json")):
        try:
            said = json.loads(entry.read_text("utf-8"))
            if said["format"] != FORMAT:
                raise LogDamaged(entry, 0, f"it has format {said['format']}", "use a release that knows it")
            found.append(
                Commit(
                    said["commit"],
                    said["source"],
                    said["at_ms"],
                    {int(p): offset for p, offset in said["starts"].items()},
                    {int(p): offset for p, offset in said["ends"].items()},
                    tuple(Piece(**piece) for piece in said["pieces"]),
                    said.get("identity", {}),
                    {int(p): digest for p, digest in said.get("digests", {}).items()},
                )
            )
        except (ValueError, KeyError, TypeError) as error:
            raise LogDamaged(entry, 0, f"it is no commit of an archive ({error})", _ADVICE) from None
    for number, commit in enumerate(found, 1):
        if commit.number != number:
            raise LogDamaged(path / f"{number:08d}.json", 0, "the commit is missing", _ADVICE)
    return found


def write_commit(folder: str, commit: Commit) -> None:
    """Make a copy count: everything that it names must be on the disk already."""
    said: dict[str, Any] = {
        "format": FORMAT,
        "commit": commit.number,
        "source": commit.source,
        "at_ms": commit.at_ms,
        "starts": commit.starts,
        "ends": commit.ends,
        "pieces": [vars(piece) for piece in commit.pieces],
        "identity": commit.identity,
        "digests": commit.digests,
    }
    path = Path(folder) / COMMITS / f"{commit.number:08d}.json"
    write_durably(path, json.dumps(said).encode())


@dataclass(frozen=True)
class ArchiveSource:
    """An archive's folder."""

    folder: str

    @property
    def text(self) -> str:
        """The source as a user writes it."""
        return f"archive:{self.folder}"

    def identity(self) -> dict[str, str]:
        """Return the identity of the log that was copied."""
        commits = read_commits(self.folder)
        return dict(commits[-1].identity) if commits else {}

    def as_copy(self) -> LogCopy:
        """Return which log offsets it holds without a gap up to its end, for a verdict."""
        plan = self.plan(Cut())
        return LogCopy(self.text, plan.starts, plan.ends)

    def plan(self, cut: Cut, *, range_records: int = RANGE_RECORDS) -> Plan:
        """Choose the stretches, and cut them into ranges of whole files."""
        commits = read_commits(self.folder)
        if not commits:
            raise ConfigError("archive", self.folder, "the folder of an archive (it has none)")
        if cut.time_ms is not None:
            everything = self._plan(commits, Cut(), range_records, all_stretches=True)
            later = ends_after(self, everything, cut.time_ms)
            cut = Cut({p: later.get(p, END) for p in commits[-1].ends})
        return self._plan(commits, cut, range_records)

    def _plan(
        self, commits: list[Commit], cut: Cut, range_records: int, *, all_stretches: bool = False
    ) -> Plan:
        ranges: list[LogRange] = []
        starts: dict[int, int] = {}
        ends: dict[int, int] = {}
        whole_from: dict[int, int] = {}
        for state_partition in sorted({p for commit in commits for p in commit.ends}):
            until = cut.end(state_partition)
            start, end, pieces, whole = _stretch(commits, state_partition, until, all_stretches)
            whole_from[state_partition] = whole
            starts[state_partition], ends[state_partition] = start, max(min(end, until), start)
            ranges += _ranges(state_partition, pieces, ends[state_partition], range_records)
        return Plan(tuple(ranges), starts, ends, facts={"commits": len(commits)}, whole_from=whole_from)

    def read(self, log_range: LogRange) -> Iterator[Records]:
        """Give the records of some row groups."""
        for name, row_group in log_range.place:
            path = Path(self.folder) / FILES / name
            try:
                with pq.ParquetFile(path) as file:
                    for rows in file.read_row_group(row_group).to_batches():
                        for records in records_from_arrow(rows):
                            within = records.between(log_range.start, log_range.end)
                            if len(within):
                                yield within
            except (OSError, ValueError) as error:
                raise LogDamaged(path, 0, str(error), _ADVICE, log_range.state_partition) from None


def _stretch(
    commits: list[Commit], state_partition: int, until: int, all_stretches: bool
) -> tuple[int, int, list[Piece], int]:
    """Return start, end and pieces of the last stretch of a state partition that begins below an offset.

    The last number is the end of the stretch when its beginning was copied.
    """
    start = end = whole_from = 0
    pieces: list[Piece] = []
    begun = False
    for commit in commits:
        if state_partition not in commit.ends:
            continue
        added = [piece for piece in commit.pieces if piece.state_partition == state_partition]
        if not begun or (commit.starts[state_partition] > end and not all_stretches):
            if begun and commit.starts[state_partition] >= until:
                break
            start, pieces, begun = commit.starts[state_partition], [], True
            whole_from = commit.ends[state_partition]
        pieces += added
        end = commit.ends[state_partition]
    return start, end, pieces, whole_from


def _ranges(state_partition: int, pieces: list[Piece], until: int, range_records: int) -> list[LogRange]:
    found: list[LogRange] = []
    for piece in pieces:
        if piece.start >= until:
            break
        place = ((piece.file, piece.row_group),)
        last = found[-1] if found else None
        if last is not None and last.records + piece.records <= range_records:
            found[-1] = replace(
                last,
                end=min(piece.end, until),
                records=last.records + piece.records,
                place=(*last.place, *place),
            )
        else:
            found.append(LogRange(state_partition, piece.start, min(piece.end, until), piece.records, place))
    return found


_ADVICE = "restore the archive from a backup"
