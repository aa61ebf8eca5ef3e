"""An archive of a year: old states are read from the nearest checkpoint, and old records can be removed."""

import shutil
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from coordinator.recovery.archive import archive
from coordinator.recovery.audit import Options, audit
from coordinator.recovery.compaction import DAY_MS, remove_old
from coordinator.recovery.engines import LocalEngine
from coordinator.recovery.folders import open_folder
from coordinator.recovery.rebuild import rebuild
from coordinator.recovery.sources.archive import FILES, ArchiveSource, read_commits
from coordinator.recovery.sources.base import LogCut
from coordinator.recovery.sources.checkpoints import CHECKPOINTS
from coordinator.recovery.sources.segments import SegmentSource
from coordinator.recovery.state_checkpoints import checkpoint_states
from protocol.messages.share_snapshot import ShareSnapshotValue
from protocol.messages.share_update import ShareUpdateValue
from protocol.record_batch import encode_batch
from protocol.state_batches import StateBatch, pack
from protocol.state_records import SharePartitionKey, StateRecord, encode_record
from tests.recovery.logs_on_disk import TOPIC, offsets_read
from tests.recovery.test_compaction import SetClock

ALONE = LocalEngine(1)
DAYS, RECORDS_A_DAY, SHARE_PARTITIONS = 365, 1_000, 20
BEGAN_MS = 1_700_006_400_000  # the beginning of a day
BATCH_RECORDS = 100
TRAVEL_PART_MAX = 0.02


def make_day(day: int) -> list[tuple[bytes, bytes | None]]:
    """Return the records of a day: a snapshot of each share-partition, then updates.

    Each share-partition advances, so the states of two days differ.
    """
    random = Random(day)
    keys = [SharePartitionKey(f"group-{n % 3}", bytes([n + 1]) * 16, n) for n in range(SHARE_PARTITIONS)]
    first = day * 1_000
    snapshot = ShareSnapshotValue(day, 1, 2, first, BEGAN_MS, BEGAN_MS, b"", -1)
    found = [encode_record(StateRecord(key, snapshot)) for key in keys]
    for _ in range(RECORDS_A_DAY - len(keys)):
        # Nine state batches, whose offsets do not compress.
        offsets = [first + each for each in random.randbytes(9)]
        batches = pack(StateBatch(at, at + 3, each % 3 * 2, 1) for each, at in enumerate(offsets))
        found.append(
            encode_record(StateRecord(random.choice(keys), ShareUpdateValue(day, 2, -1, batches, -1)))
        )
    return found


def write_day(folder: Path, day: int) -> SegmentSource:
    """Write the segment of a day; the previous ones were pruned."""
    shutil.rmtree(folder, ignore_errors=True)
    (folder / f"{TOPIC}-0").mkdir(parents=True)
    records, begin = make_day(day), day * RECORDS_A_DAY
    # One record batch after the other through the day.
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


@pytest.fixture(scope="module")
def year(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An archive that was written once a day for a year, with a state checkpoint each day."""
    folder, clock = tmp_path_factory.mktemp("year"), SetClock()
    with pytest.MonkeyPatch.context() as patch:
        # Durability is not tested here, and takes half of the time.
        patch.setattr("os.fsync", lambda file: None)
        for day in range(DAYS):
            clock.ms = BEGAN_MS + (day + 1) * DAY_MS - 1
            archive(write_day(folder / "log", day), folder / "archive", clock=clock)  # type: ignore[arg-type]
            checkpoint_states(ALONE, folder / "archive", interval_ms=DAY_MS, now_ms=clock.ms)
    return folder / "archive"


def bytes_read(action: Callable[[], object]) -> int:
    """Return the number of bytes that this process reads from files during an action."""

    def count() -> int:
        fields = Path("/proc/self/io").read_text().split()
        return int(fields[fields.index("rchar:") + 1])

    before = count()
    action()
    return count() - before


def stored_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def without_checkpoints(folder: Path, copy: Path) -> ArchiveSource:
    shutil.copytree(folder, copy)
    shutil.rmtree(copy / CHECKPOINTS, ignore_errors=True)
    return ArchiveSource(str(copy))


@pytest.mark.slow
@pytest.mark.parametrize("days_ago", [1, 180])
def test_old_state_is_read_from_two_percent_of_a_year(year: Path, days_ago: int, tmp_path: Path) -> None:
    """The cut is a time at noon. The bytes are those that the kernel counts for this process."""
    source = ArchiveSource(str(year))
    cut = LogCut(time_ms=BEGAN_MS + (DAYS - days_ago) * DAY_MS - DAY_MS // 2)
    found = rebuild(ALONE, source, cut=cut)
    used = bytes_read(lambda: rebuild(ALONE, source, cut=cut))
    assert 0 < used <= TRAVEL_PART_MAX * stored_bytes(year)
    assert (
        found.manifest["totals"]["records"]
        == (DAYS - days_ago) * RECORDS_A_DAY - RECORDS_A_DAY // 2 + BATCH_RECORDS
    )
    plain = without_checkpoints(year, tmp_path / "plain")
    assert found.states.equals(rebuild(ALONE, plain, cut=cut).states)
    assert bytes_read(lambda: rebuild(ALONE, plain, cut=cut)) > 10 * used


@pytest.mark.slow
def test_retention_keeps_the_states_of_its_time_and_removes_older_records(year: Path, tmp_path: Path) -> None:
    kept_days, folder = 30, tmp_path / "archive"
    shutil.copytree(year, folder)
    plain, source = without_checkpoints(year, tmp_path / "plain"), ArchiveSource(str(folder))
    now_ms = BEGAN_MS + DAYS * DAY_MS
    before = stored_bytes(folder)
    removed = remove_old(folder, keep_ms=kept_days * DAY_MS, now_ms=now_ms)
    # The snapshots of the first kept day are in the last removed commit but one.
    assert removed == (DAYS - kept_days - 1) * RECORDS_A_DAY
    assert remove_old(folder, keep_ms=kept_days * DAY_MS, now_ms=now_ms) == 0
    assert stored_bytes(folder) < 0.12 * before
    assert len(list((folder / FILES).iterdir())) == kept_days + 1
    assert len(read_commits(open_folder(folder))) == kept_days + 1
    first = (DAYS - kept_days) * RECORDS_A_DAY
    for end in (first, first + 700, DAYS * RECORDS_A_DAY):
        cut = LogCut({0: end})
        kept = rebuild(ALONE, source, cut=cut)
        assert kept.states.equals(rebuild(ALONE, plain, cut=cut).states), end
        assert kept.manifest["doubtful_partitions"] == []
    assert rebuild(ALONE, source, cut=LogCut({0: first - 1})).manifest["doubtful_partitions"] == [0]
    # A log that was pruned to the same offset has the same findings.
    checks = set(audit(ALONE, source, Options()).findings.column("check").to_pylist())
    assert checks <= set(audit(ALONE, plain, Options()).findings.column("check").to_pylist()) | {"K1b"}
    # The archive is continued.
    clock = SetClock()
    clock.ms = now_ms + DAY_MS
    done = archive(write_day(year.parent / "log", DAYS), folder, clock=clock)  # type: ignore[arg-type]
    assert (done.records, done.is_whole) == (RECORDS_A_DAY, True)
    assert offsets_read(source)[0][-1] == (DAYS + 1) * RECORDS_A_DAY - 1


def test_nothing_is_removed_without_state_checkpoint(tmp_path: Path) -> None:
    folder = tmp_path / "archive"
    for day in range(2):
        archive(write_day(tmp_path / "log", day), folder)
    assert remove_old(folder, keep_ms=1, now_ms=BEGAN_MS * 2) == 0
    assert len(offsets_read(ArchiveSource(str(folder)))[0]) == 2 * RECORDS_A_DAY
