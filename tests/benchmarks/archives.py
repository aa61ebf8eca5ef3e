"""Generate archives of a year: one with records, and one with only a commit every five minutes."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import NamedTuple
from unittest import mock

from coordinator.process.clock import cpu_seconds
from coordinator.recovery.archive import archive
from coordinator.recovery.compaction import DAY_MS
from coordinator.recovery.engines import LocalEngine
from coordinator.recovery.folders import open_folder
from coordinator.recovery.sources.archive import ArchiveSource, Commit, RowGroup, write_commit
from coordinator.recovery.sources.base import LogCut
from coordinator.recovery.sources.segments import SegmentSource
from coordinator.recovery.state_checkpoints import checkpoint_states
from protocol.messages.share_snapshot import ShareSnapshotValue
from protocol.messages.share_update import ShareUpdateValue
from protocol.record_batch import encode_batch
from protocol.state_batches import StateBatch, pack
from protocol.state_records import SharePartitionKey, StateRecord, encode_record
from tests.benchmarks.machine import peak_mib
from tests.recovery.logs_on_disk import TOPIC

COMMITS_IN_A_DAY = 288
_DAYS = 348
_RECORDS_IN_A_COMMIT = 100

# The archive with records.
DAYS, RECORDS_A_DAY, BATCH_RECORDS = 365, 1_000, 100
_SHARE_PARTITIONS = 20
# The start of the year in ms since 1970: the beginning of a day.
BEGAN_MS = 1_700_006_400_000


class PlanningCost(NamedTuple):
    """The cost of planning the read of an archive.

    `peak_mib` is the peak memory of this process since its start.
    """

    commits: int
    cpu_s: float
    peak_mib: int


def write_commits_of_a_year(folder: Path, *, state_partitions: int = 50) -> int:
    """Write an archive's commits of a year, merged for each day except the last; return their number."""
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


def measure_planning_of_a_year(folder: Path) -> PlanningCost:
    """Plan the read of the whole archive; return the cost."""
    begun_s = cpu_seconds()
    plan = ArchiveSource(str(folder)).plan(LogCut())
    cpu_s = cpu_seconds() - begun_s
    return PlanningCost(plan.facts["commits"], cpu_s, peak_mib())


def _make_records_of_day(day: int) -> list[tuple[bytes, bytes | None]]:
    """Return the records of a day: a snapshot of each share-partition, then updates.

    Each share-partition advances, so the states of two days differ.
    """
    random = Random(day)
    keys = [SharePartitionKey(f"group-{n % 3}", bytes([n + 1]) * 16, n) for n in range(_SHARE_PARTITIONS)]
    first = day * 1_000
    snapshot = ShareSnapshotValue(day, 1, 2, first, BEGAN_MS, BEGAN_MS, b"", -1)
    found = [encode_record(StateRecord(key, snapshot)) for key in keys]
    for _ in range(RECORDS_A_DAY - len(keys)):
        # Nine state batches with random offsets, which do not compress well.
        offsets = [first + each for each in random.randbytes(9)]
        batches = pack(StateBatch(at, at + 3, each % 3 * 2, 1) for each, at in enumerate(offsets))
        found.append(
            encode_record(StateRecord(random.choice(keys), ShareUpdateValue(day, 2, -1, batches, -1)))
        )
    return found


def write_day(folder: Path, day: int) -> SegmentSource:
    """Write a state log that has only the segment of one day, as if earlier segments were pruned."""
    shutil.rmtree(folder, ignore_errors=True)
    (folder / f"{TOPIC}-0").mkdir(parents=True)
    records, begin = _make_records_of_day(day), day * RECORDS_A_DAY
    # The record batches are distributed evenly over the day.
    pause_ms = DAY_MS * BATCH_RECORDS // RECORDS_A_DAY
    batches = [
        encode_batch(
            begin + at,
            BEGAN_MS + day * DAY_MS + at // BATCH_RECORDS * pause_ms,
            records[at : at + BATCH_RECORDS],
        )
        for at in range(0, RECORDS_A_DAY, BATCH_RECORDS)
    ]
    (folder / f"{TOPIC}-0" / f"{begin:020}.log").write_bytes(b"".join(batches))
    return SegmentSource(str(folder))


class SettableClock:
    """A clock with a settable time."""

    def __init__(self) -> None:
        self.ms = 0

    def now_ms(self) -> int:
        return self.ms

    def monotonic_s(self) -> float:
        return self.ms / 1000


def write_archive_of_a_year(folder: Path, days: int = DAYS) -> Path:
    """Write an archive once a day, with a state checkpoint each day; return its directory.

    The state log is next to the archive, in `folder/log`.
    """
    clock, target = SettableClock(), folder / "archive"
    # Disable fsync, because it takes half of the time, and durability does not matter here.
    with mock.patch.object(os, "fsync"):
        for day in range(days):
            clock.ms = BEGAN_MS + (day + 1) * DAY_MS - 1
            archive(write_day(folder / "log", day), target, clock=clock)  # type: ignore[arg-type]
            checkpoint_states(LocalEngine(1), target, interval_ms=DAY_MS, now_ms=clock.ms)
    return target


def measure_bytes_read(action: Callable[[], object]) -> int:
    """Return the number of bytes that this process reads from files during an action."""

    def count_bytes_read() -> int:
        fields = Path("/proc/self/io").read_text().split()
        return int(fields[fields.index("rchar:") + 1])

    before = count_bytes_read()
    action()
    return count_bytes_read() - before


def sum_file_sizes(folder: Path) -> int:
    """Return the size of all files in a directory."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
