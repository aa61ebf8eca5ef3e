"""The archive keeps copied records, ignores uncommitted files, and records gaps."""

import json
import shutil
from pathlib import Path

import pytest

from coordinator.errors import ConfigError, LogDamaged, LogError
from coordinator.log.claims import encode_claim
from coordinator.process.clock import cpu_seconds
from coordinator.recovery.archive import archive
from coordinator.recovery.engines import LocalEngine
from coordinator.recovery.rebuild import rebuild
from coordinator.recovery.sources.archive import ArchiveSource, RowGroup
from coordinator.recovery.sources.base import Cut
from coordinator.recovery.sources.journal import JournalSource
from coordinator.recovery.sources.segments import SegmentSource
from coordinator.recovery.state_checkpoints import checkpoint_states
from protocol.record_batch import encode_batch
from tests.recovery.log_strategies import Entry, by_key, comparable, core_rows, core_states, encode_log
from tests.recovery.logs_on_disk import (
    TOPIC,
    batches_of,
    expected,
    offsets_read,
    some_records,
    write_journal,
    write_segments,
)
from tests.unit.cli.command_line import CommandLine

ALONE = LocalEngine(1)


class Log:
    """A partition on disk, which grows and is pruned."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.source = SegmentSource(str(folder))
        self.records = some_records(900)
        self.end = 0

    def grow(self, count: int) -> None:
        write_segments(
            self.folder / f"{TOPIC}-0",
            batches_of(self.records[self.end : self.end + count], base_offset=self.end, size=5),
        )
        self.end += count

    def prune(self) -> None:
        """Drop all but the last segment."""
        for path in sorted((self.folder / f"{TOPIC}-0").glob("*.log"))[:-1]:
            path.unlink()


@pytest.fixture
def log(tmp_path: Path) -> Log:
    return Log(tmp_path / "disk")


def rows(folder: Path, cut: Cut | None = None) -> list[dict[str, object]]:
    run = rebuild(ALONE, ArchiveSource(str(folder)), cut=cut, range_records=50)
    return comparable(by_key(run.states.to_pylist()))


def test_each_run_copies_new_records_and_pruning_does_not_affect_copies(log: Log, tmp_path: Path) -> None:
    folder = tmp_path / "archive"
    for number in (1, 2, 3):
        log.grow(300)
        run = archive(log.source, folder)
        assert (run.commit, run.records, run.ends, run.gaps) == (number, 300, {0: 300 * number}, {})
        log.prune()
    assert archive(log.source, folder).records == 0
    assert offsets_read(ArchiveSource(str(folder))) == {0: list(range(900))}
    whole = {0: batches_of(log.records, size=5)}
    assert rows(folder) == expected(whole)
    for end in (0, 1, 250, 300, 777):
        assert rows(folder, Cut({0: end})) == expected(whole, before={0: end})
    assert rows(folder, Cut(time_ms=1_039)) == expected(whole, before={0: 200})


@pytest.mark.parametrize(
    "unread", [encode_batch(100, 5, [(b"key", b"value")])[:-3], bytes(8_192)], ids=["torn", "zeros"]
)
def test_incomplete_write_is_not_copied(unread: bytes, log: Log, tmp_path: Path) -> None:
    empty = tmp_path / "empty" / f"{TOPIC}-0"
    empty.mkdir(parents=True)
    (empty / f"{100:020}.log").write_bytes(unread)
    assert archive(SegmentSource(str(tmp_path / "empty")), tmp_path / "nothing").records == 0
    log.grow(100)
    (path,) = (tmp_path / "disk" / f"{TOPIC}-0").iterdir()
    path.write_bytes(path.read_bytes() + unread)
    copied = [archive(log.source, tmp_path / "archive").records for _ in range(2)]
    assert copied == [100, 0]
    assert offsets_read(ArchiveSource(str(tmp_path / "archive"))) == {0: list(range(100))}


def test_files_of_killed_run_are_ignored(log: Log, tmp_path: Path) -> None:
    folder = tmp_path / "archive"
    log.grow(100)
    archive(log.source, folder)
    log.grow(100)
    archive(log.source, folder)
    # Simulate a machine failure before the commit, during the write of a file.
    (folder / "commits" / "00000002.json").unlink()
    torn = folder / "records" / "00000002-0.parquet"
    torn.write_bytes(torn.read_bytes()[:100])
    (folder / "commits" / ".00000002.json.unfinished").write_text("{")
    assert offsets_read(ArchiveSource(str(folder))) == {0: list(range(100))}
    assert archive(log.source, folder).records == 100
    assert offsets_read(ArchiveSource(str(folder))) == {0: list(range(200))}


def test_reading_restarts_after_gap(log: Log, tmp_path: Path) -> None:
    folder = tmp_path / "archive"
    log.grow(100)
    archive(log.source, folder)
    log.grow(100)
    log.grow(100)
    log.prune()
    assert archive(log.source, folder).gaps == {0: (100, 200)}
    log.grow(100)
    assert archive(log.source, folder).gaps == {}
    source = ArchiveSource(str(folder))
    assert offsets_read(source) == {0: list(range(200, 400))}
    assert offsets_read(source, Cut({0: 90})) == {0: list(range(90))}
    # Within the gap, the last known state is the one before the gap.
    assert offsets_read(source, Cut({0: 150})) == {0: list(range(100))}
    assert "pruned" in rebuild(ALONE, source, cut=Cut({0: 250})).manifest["notes"][0]
    assert rebuild(ALONE, source, cut=Cut({0: 300})).manifest["notes"] == []


def test_different_log_is_refused(log: Log, tmp_path: Path) -> None:
    folder = tmp_path / "archive"
    write_journal(tmp_path / "journal", {0: some_records(50)})
    archive(JournalSource(str(tmp_path / "journal")), folder)
    log.grow(10)
    with pytest.raises(ConfigError, match="neither a record nor an id of it is in both"):
        archive(log.source, folder)
    shutil.rmtree(tmp_path / "journal")
    write_journal(tmp_path / "journal", {0: some_records(20)})
    with pytest.raises(LogError, match="ends at 20, and records up to 50 were copied"):
        archive(JournalSource(str(tmp_path / "journal")), folder)
    # A log of the same name and length.
    shutil.rmtree(tmp_path / "journal")
    write_journal(tmp_path / "journal", {0: some_records(60, seed=9)})
    with pytest.raises(ConfigError, match="log offset 49 of state partition 0 is another record"):
        archive(JournalSource(str(tmp_path / "journal")), folder)
    assert offsets_read(ArchiveSource(str(folder))) == {0: list(range(50))}


def test_same_log_under_other_name_is_accepted(log: Log, tmp_path: Path) -> None:
    folder = tmp_path / "archive"
    log.grow(100)
    archive(log.source, folder)
    log.grow(100)
    (tmp_path / "moved").symlink_to(log.folder)
    for text in (f"{log.folder}/", str(tmp_path / "moved")):
        log.grow(100)
        assert archive(SegmentSource(text), folder).is_whole
    assert offsets_read(ArchiveSource(str(folder))) == {0: list(range(400))}


def test_log_with_other_ids_or_unrecognizable_log_is_refused(log: Log, tmp_path: Path) -> None:
    def identify(folder: Path, topic_id: str) -> None:
        (folder / "meta.properties").write_text("version=1\ncluster.id=cluster-1\n")
        (folder / f"{TOPIC}-0" / "partition.metadata").write_text(f"version: 0\ntopic_id: {topic_id}\n")

    folder = tmp_path / "archive"
    log.grow(100)
    identify(log.folder, "first")
    archive(log.source, folder)
    assert ArchiveSource(str(folder)).identity() == {"cluster_id": "cluster-1", "topic_id": "first"}
    identify(log.folder, "second")
    with pytest.raises(ConfigError, match="its topic_id is first, not second"):
        archive(log.source, folder)
    # Without ids, and pruned beyond the copied records.
    (log.folder / "meta.properties").unlink()
    (log.folder / f"{TOPIC}-0" / "partition.metadata").unlink()
    log.grow(100)
    log.grow(100)
    log.prune()
    log.folder.rename(tmp_path / "elsewhere")
    with pytest.raises(ConfigError, match="neither a record nor an id of it is in both"):
        archive(SegmentSource(str(tmp_path / "elsewhere")), folder)


def test_gap_and_damage_change_exit_code(share_coordinator: CommandLine, log: Log, tmp_path: Path) -> None:
    command = ("recovery", "archive", "--from", log.source.text, "--to", str(tmp_path / "archive"))
    log.grow(100)
    assert share_coordinator(*command).exit_code == 0
    log.grow(100)
    log.grow(100)
    log.prune()
    said = share_coordinator(*command)
    assert (said.exit_code, "records 100 to 199 of state partition 0 were pruned" in said.err) == (1, True)
    assert share_coordinator(*command).exit_code == 0
    log.grow(100)
    path = max((log.folder / f"{TOPIC}-0").glob("*.log"))
    data = bytearray(path.read_bytes())
    data[80] ^= 1
    path.write_bytes(data)
    said = share_coordinator(*command)
    assert (said.exit_code, "log offsets 300 to 304" in said.err) == (1, True)


def test_concurrent_run_is_refused(log: Log, tmp_path: Path) -> None:
    from coordinator.recovery.archive import archive_lock

    folder = tmp_path / "archive"
    log.grow(10)
    archive(log.source, folder)
    with archive_lock(folder), pytest.raises(LogError, match="is written to by another run"):
        archive(log.source, folder)


def test_damaged_archive_is_refused(log: Log, tmp_path: Path) -> None:
    folder = tmp_path / "archive"
    with pytest.raises(ConfigError, match="it has none"):
        ArchiveSource(str(folder)).plan(Cut())
    for _ in range(2):
        log.grow(100)
        archive(log.source, folder)
    data = folder / "records" / "00000001-0.parquet"
    data.rename(folder / "aside")
    with pytest.raises(LogDamaged, match="parquet is damaged"):
        rows(folder)
    (folder / "aside").rename(data)
    first = folder / "commits" / "00000001.json"
    said = first.read_text()
    first.write_text(said[:-5])
    with pytest.raises(LogDamaged, match="it is no commit"):
        rows(folder)
    first.unlink()
    with pytest.raises(LogDamaged, match="the commit is missing"):
        rows(folder)


def test_old_state_is_read_from_previous_checkpoint(log: Log, tmp_path: Path) -> None:
    folder, day_ms = tmp_path / "archive", 86_400_000
    plain = tmp_path / "plain"
    for day in range(30):
        log.grow(30)
        archive(log.source, folder)
        archive(log.source, plain)
        assert checkpoint_states(ALONE, folder, interval_ms=day_ms, now_ms=day * day_ms) == day + 1
        assert checkpoint_states(ALONE, folder, interval_ms=day_ms, now_ms=day * day_ms + 1) is None
        log.prune()
    source = ArchiveSource(str(folder), use_checkpoints=True)
    for end in (5, 30, 31, 455, 870, 899, 900):
        cut = Cut({0: end})
        assert rows(folder, cut) == rows(plain, cut), end
        read = sum(each.records for each in source.plan(cut).ranges)
        assert read <= 30, end
        found, wanted = (rebuild(ALONE, ArchiveSource(str(each)), cut=cut).states for each in (folder, plain))
        assert found.equals(wanted)
    # A cut by time uses the record times that the commits store for their files.
    assert rows(folder, Cut(time_ms=1_039)) == rows(plain, Cut(time_ms=1_039))
    # An audit reads the records instead of checkpoints.
    assert sum(each.records for each in ArchiveSource(str(folder)).plan(Cut()).ranges) == 900


def test_checkpoint_applies_fencing_of_several_owners(tmp_path: Path) -> None:
    entries = [Entry(*encode_claim(0, "one"), 1, 1)]
    entries += [Entry(key, value, 1, 2) for key, value in some_records(40, seed=1)]
    entries.append(Entry(*encode_claim(0, "two"), 2, 3))
    entries += [Entry(key, value, 1 + n % 2, 4) for n, (key, value) in enumerate(some_records(40, seed=2))]
    entries += [Entry(key, value, 1 + n % 2, 5) for n, (key, value) in enumerate(some_records(40, seed=3))]
    batches = encode_log(entries)
    for count in (30, 60, 90, len(batches)):
        write_segments(tmp_path / "disk" / f"{TOPIC}-7", batches[:count])
        archive(SegmentSource(str(tmp_path / "disk")), tmp_path / "archive")
        checkpoint_states(ALONE, tmp_path / "archive", interval_ms=1, now_ms=count)
    assert rows(tmp_path / "archive") == core_rows(core_states(batches))


def test_ten_thousand_commits_are_planned_in_seconds(tmp_path: Path) -> None:
    folder = tmp_path / "archive"
    (folder / "commits").mkdir(parents=True)
    for number in range(1, 10_001):
        ends = {p: number * 10 for p in range(10)}
        pieces = tuple(
            RowGroup(p, number * 10 - 10, number * 10, 10, f"{number}.parquet", p, 5) for p in range(10)
        )
        said = {
            "format": 1,
            "commit": number,
            "source": "kafka:x",
            "at_ms": number,
            "starts": ends,
            "ends": ends,
        }
        said["starts"] = {p: number * 10 - 10 for p in range(10)}
        said["pieces"] = [vars(piece) for piece in pieces]
        (folder / "commits" / f"{number:08d}.json").write_text(json.dumps(said))
    begun_s = cpu_seconds()
    plan = ArchiveSource(str(folder)).plan(Cut({3: 50_005}))
    assert cpu_seconds() - begun_s < 10
    assert (plan.starts[3], plan.ends[3], plan.ends[4]) == (0, 50_005, 100_000)
