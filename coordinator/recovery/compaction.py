"""Merge the commits of each finished day of an archive, so that planning an old archive stays fast.

A merged commit names new Parquet files with large row groups. When it is written, it replaces the commits of
its day.  The next compaction deletes the replaced files, so that jobs that run now can still read them.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path

from coordinator.recovery.durable_files import sync_folder
from coordinator.recovery.record_files import RecordFileWriter
from coordinator.recovery.sources.archive import (
    COMMITS,
    FILES,
    Commit,
    RowGroup,
    commit_names,
    read_commits,
    read_row_group,
    write_commit,
)

DAY_MS = 86_400_000


def compact(folder: Path, now_ms: int) -> int:
    """Merge the commits of finished days; return the number of merged commits. The archive must be locked.

    Raises LogDamaged and OSError; the commits of that day are then unchanged.
    """
    commits = read_commits(str(folder))
    groups = list(_groups_to_merge(commits, now_ms))
    if groups:
        _delete_replaced(folder, commits)
    for group in groups:
        write_commit(str(folder), _merge_commits(folder, group))
    return sum(map(len, groups))


def _groups_to_merge(commits: Sequence[Commit], now_ms: int) -> Iterator[list[Commit]]:
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


def _merge_commits(folder: Path, group: Sequence[Commit]) -> Commit:
    """Write the records of some commits to new files; return the commit that replaces them."""
    first, last = group[0], group[-1]
    starts: dict[int, int] = {}
    ends: dict[int, int] = {}
    whole_from: dict[int, int] = {}
    for commit in group:
        starts = {**commit.starts, **starts}
        whole_from = {**commit.ends, **commit.whole_from, **whole_from}
        ends.update(commit.ends)
    pieces = sorted(
        (piece for commit in group for piece in commit.pieces),
        key=lambda piece: (piece.state_partition, piece.start),
    )
    return Commit(
        *(last.number, last.source, last.at_ms, starts, ends, _copy_pieces(folder, first, last, pieces)),
        identity=last.identity,
        digests=last.digests,
        first=first.first,
        whole_from=whole_from,
    )


def _copy_pieces(
    folder: Path, first: Commit, last: Commit, pieces: Sequence[RowGroup]
) -> tuple[RowGroup, ...]:
    files = RecordFileWriter(folder / FILES, f"{first.first:08d}-{last.number:08d}")
    for piece in pieces:
        for records in read_row_group(str(folder), piece.file, piece.row_group, piece.state_partition):
            files.take(records)
    files.close()
    sync_folder(folder / FILES)
    return tuple(files.pieces)


def _delete_replaced(folder: Path, commits: Sequence[Commit]) -> None:
    """Delete the record files that no commit names, and the commit files that were merged before."""
    used: Mapping[int, int] = {commit.first: commit.number for commit in commits}
    merged_to = max((commit.number for commit in commits if commit.number > commit.first), default=0)
    named = {piece.file for commit in commits for piece in commit.pieces}
    for path in (folder / FILES).glob("*.parquet"):
        if int(path.name[:8]) <= merged_to and path.name not in named:
            path.unlink()
    for (first, number), path in commit_names(folder / COMMITS).items():
        if number <= merged_to and used.get(first) != number:
            path.unlink()
