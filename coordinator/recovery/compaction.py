"""Merge the commits of each finished day of an archive, and delete records that are older than its retention.

A merged commit names new Parquet files with large row groups. As soon as a merged commit is written, it
replaces the commits of its day. The next compaction deletes the replaced files, so that jobs that run now can
still read them.

Retention does to an archive what pruning does to a log: it removes the records that no state at a certain
time needs any more.  Its commit replaces the commits up to that time, and names the files that remain.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from uuid import uuid4  # noqa: TID251

from coordinator.recovery.folders import Folder, Location, open_folder
from coordinator.recovery.record_files import RecordFileWriter
from coordinator.recovery.sources.archive import (
    COMMITS,
    FILES,
    Commit,
    RowGroup,
    commit_files,
    consecutive_pieces,
    read_commits,
    read_row_group,
    write_commit,
)
from coordinator.recovery.sources.checkpoints import StateCheckpoint, StoredCheckpoints

DAY_MS = 86_400_000


def compact(folder: Folder, now_ms: int) -> int:
    """Merge the commits of finished days; return the number of merged commits.

    If another job merges the same commits, the commits of one of them are used.  Raises LogDamaged and
    OSError; the commits of that day are then unchanged.
    """
    commits = read_commits(folder)
    groups = list(_groups_to_merge(commits, now_ms))
    if groups:
        _delete_replaced(folder, commits)
    for group in groups:
        _replace_commits(folder, _merge_commits(folder, group))
    return sum(map(len, groups))


def _replace_commits(folder: Folder, commit: Commit) -> None:
    try:
        write_commit(folder, commit)
    except FileExistsError:
        # Another job has merged the same commits; its files have the same records.
        return


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


def _merge_commits(folder: Folder, group: Sequence[Commit]) -> Commit:
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
    folder: Folder, first: Commit, last: Commit, pieces: Sequence[RowGroup]
) -> tuple[RowGroup, ...]:
    files = RecordFileWriter(folder / FILES, f"{first.first:08d}-{last.number:08d}-{uuid4().hex}")
    for piece in pieces:
        for records in read_row_group(folder, piece.file, piece.row_group, piece.state_partition):
            files.add_records(records)
    files.close()
    return tuple(files.pieces)


def _delete_replaced(folder: Folder, commits: Sequence[Commit]) -> None:
    """Delete the record files that no commit names, and the commit files that were merged before."""
    used: Mapping[int, int] = {commit.first: commit.number for commit in commits}
    merged_to = max((commit.number for commit in commits if commit.number > commit.first), default=0)
    named = {piece.file for commit in commits for piece in commit.pieces}
    for name in (folder / FILES).names():
        if int(name[:8]) <= merged_to and name not in named:
            (folder / FILES).delete(name)
    for (first, number), name in commit_files(folder).items():
        if number <= merged_to and used.get(first) != number:
            (folder / COMMITS).delete(name)


def remove_old_audits(location: Location, *, keep_ms: int, now_ms: int) -> int:
    """Remove the records that no state of the last `keep_ms` needs; return the number of removed records.

    The states at the beginning of that time come from the state checkpoint before it. Without one, nothing
    is removed.  Raises LogError and OSError.
    """
    folder = open_folder(location)
    commits, checkpoints = read_commits(folder), StoredCheckpoints(folder)
    old = [number for number in checkpoints.numbers if checkpoints.get(number).at_ms <= now_ms - keep_ms]
    if not old:
        return 0
    checkpoint = checkpoints.get(old[-1])
    # The files that the previous run replaced.
    _delete_replaced(folder, commits)
    for number in old[:-1]:
        checkpoints.delete(number)
    replaced = [commit for commit in commits if commit.number <= checkpoint.commit]
    if len(replaced) < 2:
        return 0
    commit = _without_unneeded(replaced, _needed_offsets(checkpoint), checkpoint)
    _replace_commits(folder, commit)
    return sum(piece.records for each in replaced for piece in each.pieces) - sum(
        piece.records for piece in commit.pieces
    )


def _needed_offsets(checkpoint: StateCheckpoint) -> dict[int, int]:
    """Return for each state partition the first log offset that a state of the checkpoint needs."""
    found = {}
    for number, place in checkpoint.places.items():
        rows = place.read().states.select(["write_timestamp", "needed_from"]).to_pylist()
        # A state without a snapshot needs all records.
        if all(row["write_timestamp"] for row in rows):
            found[number] = min((row["needed_from"] for row in rows), default=checkpoint.end(number))
    return found


def _without_unneeded(
    replaced: Sequence[Commit], needed: Mapping[int, int], checkpoint: StateCheckpoint
) -> Commit:
    """Return one commit that has the records of the replaced commits from the needed log offsets."""
    starts: dict[int, int] = {}
    ends: dict[int, int] = {}
    whole_from: dict[int, int] = {}
    kept: list[RowGroup] = []
    for number, stretches in consecutive_pieces(replaced).items():
        stretch = stretches[-1]
        pieces = [piece for piece in stretch.pieces if piece.end > needed.get(number, 0)]
        removes = len(pieces) < len(stretch.pieces)
        starts[number] = min((piece.start for piece in pieces), default=stretch.end)
        ends[number] = stretch.end
        whole_from[number] = max(stretch.whole_from, checkpoint.end(number) if removes else 0)
        kept += pieces
    last = replaced[-1]
    return Commit(
        *(last.number, last.source, last.at_ms, starts, ends, tuple(kept)),
        identity=last.identity,
        digests=last.digests,
        first=replaced[0].first,
        whole_from=whole_from,
    )
