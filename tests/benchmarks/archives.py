"""Generate the commit files of an archive that was written every five minutes for a year, without records."""

import resource
from pathlib import Path
from typing import NamedTuple

from coordinator.process.clock import cpu_seconds
from coordinator.recovery.compaction import DAY_MS
from coordinator.recovery.folders import open_folder
from coordinator.recovery.sources.archive import ArchiveSource, Commit, RowGroup, write_commit
from coordinator.recovery.sources.base import LogCut

COMMITS_IN_A_DAY = 288
_DAYS = 348
_RECORDS_IN_A_COMMIT = 100


class PlanningCost(NamedTuple):
    """The cost of planning the read of an archive.

    `peak_mib` is the peak memory of this process since its start.
    """

    commits: int
    cpu_s: float
    peak_mib: int


def write_commits_of_a_year(folder: Path, *, state_partitions: int = 50) -> int:
    """Write the commits of all days, one merged commit for each day except the last; return their number."""
    number = 0
    for day in range(_DAYS):
        merged = COMMITS_IN_A_DAY if day < _DAYS - 1 else 1
        for _ in range(COMMITS_IN_A_DAY // merged):
            _write_commit(folder, number + 1, number + merged, day * DAY_MS, range(state_partitions))
            number += merged
    return number


def _write_commit(folder: Path, first: int, last: int, at_ms: int, state_partitions: range) -> None:
    begin, end = (first - 1) * _RECORDS_IN_A_COMMIT, last * _RECORDS_IN_A_COMMIT
    file = f"{first:08d}-{last:08d}-0.parquet"
    starts, ends = dict.fromkeys(state_partitions, begin), dict.fromkeys(state_partitions, end)
    commit = Commit(
        number=last,
        source="kafka:__share_group_state",
        at_ms=at_ms,
        starts=starts,
        ends=ends,
        pieces=tuple(RowGroup(p, begin, end, end - begin, file, p, at_ms) for p in state_partitions),
        digests=starts,
        first=first,
        whole_from=dict.fromkeys(state_partitions, begin + _RECORDS_IN_A_COMMIT),
    )
    write_commit(open_folder(folder), commit)


def plan_a_year(folder: Path) -> PlanningCost:
    """Plan the read of the whole archive."""
    begun_s = cpu_seconds()
    plan = ArchiveSource(str(folder)).plan(LogCut())
    cpu_s = cpu_seconds() - begun_s
    return PlanningCost(
        plan.facts["commits"], cpu_s, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    )
