"""Merge the commit files of each finished day of an archive, and delete records older than the retention.

A *commit* of an archive is a file that names the record files of one copy. A merged commit names new Parquet
files with large row groups, and replaces the commits of its day. The next compaction deletes the replaced
files, so that jobs in progress can still read them.

Retention prunes an archive: it removes the records that no state since the beginning of the retention time
needs. The commit that it writes replaces the commits up to that time, and names the remaining files.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import groupby
from typing import NamedTuple
from uuid import uuid4  # noqa: TID251

import msgspec

from coordinator.recovery.folders import Folder, Location, open_folder
from coordinator.recovery.record_files import RecordFileWriter
from coordinator.recovery.sources.archive import (
    COMMITS,
    FILES,
    Commit,
    RowGroup,
    commit_files,
    contiguous_copies,
    read_commits,
    read_row_group,
    write_commit,
)
from coordinator.recovery.sources.checkpoints import StateCheckpoint, StoredCheckpoints

DAY_MS = 86_400_000


class NeededOffsets(NamedTuple):
    """The first log offset that a state of a checkpoint needs, and the end of the checkpoint."""

    start: int
    end: int


def compact(folder: Folder, now_ms: int) -> int:
    """Merge an archive's commits of each finished day; return how many commits were replaced.

    If two jobs merge the same commits, the result of only one job is used. Raises LogDamaged or OSError if
    the commits of a day cannot be merged; these commits are then unchanged.
    """
    commits = read_commits(folder)
    groups = list(_group_commits_to_merge(commits, now_ms))
    if groups:
        _delete_replaced_files(folder, commits)
    for group in groups:
        merged = _merge_commits(group, {})
        _write_merged_commit(folder, msgspec.structs.replace(merged, pieces=_copy_row_groups(folder, merged)))
    return sum(map(len, groups))


def _write_merged_commit(folder: Folder, commit: Commit) -> None:
    # If the file exists, another job has merged the same commits; its files have the same records.
    with suppress(FileExistsError):
        write_commit(folder, commit)


def _group_commits_to_merge(commits: Sequence[Commit], now_ms: int) -> Iterator[list[Commit]]:
    """Yield groups of commits to merge: consecutive commits of a finished day, without a gap in offsets."""
    for day, of_day in groupby(commits, key=lambda commit: commit.at_ms // DAY_MS):
        if day >= now_ms // DAY_MS:
            continue
        group: list[Commit] = []
        ends: dict[int, int] = {}
        for commit in of_day:
            if any(start > ends.get(p, start) for p, start in commit.starts.items()):
                if len(group) > 1:
                    yield group
                group, ends = [], {}
            group.append(commit)
            ends.update(commit.ends)
        if len(group) > 1:
            yield group


def _merge_commits(commits: Sequence[Commit], needed: Mapping[int, NeededOffsets]) -> Commit:
    """Return one commit with the row groups of these commits, from the needed log offsets on.

    If log offsets are missing between two commits, the records before the gap are left out.
    """
    starts: dict[int, int] = {}
    ends: dict[int, int] = {}
    whole_from: dict[int, int] = {}
    kept: list[RowGroup] = []
    for number, copies in sorted(contiguous_copies(commits).items()):
        copied = copies[-1]
        start, known_until = needed.get(number, NeededOffsets(0, 0))
        pieces = [piece for piece in copied.pieces if piece.end > start]
        starts[number], ends[number], whole_from[number] = copied.start, copied.end, copied.whole_from
        if len(pieces) < len(copied.pieces):
            starts[number] = min((piece.start for piece in pieces), default=copied.end)
            whole_from[number] = max(copied.whole_from, known_until)
        kept += sorted(pieces, key=lambda piece: piece.start)
    last = commits[-1]
    return Commit(
        *(last.number, last.source, last.at_ms, starts, ends, tuple(kept)),
        identity=last.identity,
        digests=last.digests,
        first=commits[0].first,
        whole_from=whole_from,
    )


def _copy_row_groups(folder: Folder, commit: Commit) -> tuple[RowGroup, ...]:
    """Copy the records of a commit to new files with larger row groups."""
    files = RecordFileWriter(folder / FILES, f"{commit.first:08d}-{commit.number:08d}-{uuid4().hex}")
    for piece in commit.pieces:
        for records in read_row_group(folder, piece.file, piece.row_group, piece.state_partition):
            files.add_records(records)
    files.close()
    return tuple(files.pieces)


def _delete_replaced_files(folder: Folder, commits: Sequence[Commit]) -> None:
    """Delete record files that no commit names, and commit files that a merged commit has replaced."""
    used: Mapping[int, int] = {commit.first: commit.number for commit in commits}
    merged_to = max((commit.number for commit in commits if commit.number > commit.first), default=0)
    named = {piece.file for commit in commits for piece in commit.pieces}
    for name in (folder / FILES).names():
        if name[:8].isdigit() and int(name[:8]) <= merged_to and name not in named:
            (folder / FILES).delete(name)
    for (first, number), name in commit_files(folder).items():
        if number <= merged_to and used.get(first) != number:
            (folder / COMMITS).delete(name)


def remove_old_records(location: Location, *, keep_ms: int, now_ms: int) -> int:
    """Remove the records that no state of the last `keep_ms` needs; return the number of removed records.

    The latest state checkpoint before that time has the states at its beginning. Without a checkpoint,
    nothing is removed. Raises LogError and OSError.
    """
    folder = open_folder(location)
    commits, checkpoints = read_commits(folder), StoredCheckpoints(folder)
    old = [number for number in checkpoints.numbers if checkpoints.get(number).at_ms <= now_ms - keep_ms]
    if not old:
        return 0
    checkpoint = checkpoints.get(old[-1])
    # Delete the files that the previous run of this job replaced.
    _delete_replaced_files(folder, commits)
    for number in old[:-1]:
        checkpoints.delete(number)
    replaced = [commit for commit in commits if commit.number <= checkpoint.commit]
    if len(replaced) < 2:
        return 0
    commit = _merge_commits(replaced, _read_needed_offsets(checkpoint))
    _write_merged_commit(folder, commit)
    return sum(piece.records for each in replaced for piece in each.pieces) - sum(
        piece.records for piece in commit.pieces
    )


def _read_needed_offsets(checkpoint: StateCheckpoint) -> dict[int, NeededOffsets]:
    """Return for each state partition the log offsets that the states of the checkpoint need."""
    found = {}
    for number, place in checkpoint.places.items():
        rows = place.read().states.select(["write_timestamp", "needed_from"]).to_pylist()
        # A state without a snapshot needs all records.
        if all(row["write_timestamp"] for row in rows):
            end = checkpoint.end(number)
            found[number] = NeededOffsets(min((row["needed_from"] for row in rows), default=end), end)
    return found
