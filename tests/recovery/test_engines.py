"""Test the local engine and code of all jobs: processes, concurrent pruning, manifests, missing Spark."""

import io
import json
import pickle
import shutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from coordinator.errors import ConfigError, LogDamaged, LogUnavailable
from coordinator.recovery import api
from coordinator.recovery.checks.baseline import Baseline
from coordinator.recovery.engines import LocalEngine, open_engine, spark_session
from coordinator.recovery.engines.local import ALONE_MAX
from coordinator.recovery.engines.spark import divide_ranges
from coordinator.recovery.engines.spark_session import SparkUnavailable, get_or_start_session
from coordinator.recovery.folders import Folder, open_folder
from coordinator.recovery.job import COUNTS_OUTPUT, ResultsIncomplete
from coordinator.recovery.manifest import (
    MANIFEST,
    LazyStates,
    iso_time,
    parse_time,
    read_manifest,
)
from coordinator.recovery.rebuild import check_written_states, rebuild
from coordinator.recovery.records import Records
from coordinator.recovery.scan import RANGES_OUTPUT
from coordinator.recovery.schema import RANGES, STATES
from coordinator.recovery.sources.base import UNKNOWN_SIZE, LogCut, LogRange, PrunedError, RangeTask, ReadPlan
from coordinator.recovery.sources.segments import SegmentSource
from coordinator.recovery.tasks import NamedOutput
from protocol.messages.share_snapshot import ShareSnapshotValue
from protocol.messages.share_update import ShareUpdateValue
from protocol.state_batches import StateBatch, unpack
from protocol.state_records import decode_record
from tests.recovery.log_strategies import comparable_rows, sort_by_key
from tests.recovery.logs_on_disk import (
    TOPIC,
    encode_batches,
    load_expected_states,
    make_varied_records,
    write_segments,
)

ALONE = LocalEngine(1)


@pytest.fixture
def partition_batches(tmp_path: Path) -> dict[int, list[bytes]]:
    found = {p: encode_batches(make_varied_records(400, seed=p)) for p in range(3)}
    for p, batches in found.items():
        write_segments(tmp_path / "disk" / f"{TOPIC}-{p}", batches, batches_in_file=20)
    return found


@pytest.fixture
def source(partition_batches: dict[int, list[bytes]], tmp_path: Path) -> SegmentSource:
    return SegmentSource(str(tmp_path / "disk"))


class OverstatedSegments(SegmentSource):
    """Segments that report so many records that the engine starts processes."""

    def plan(self, cut: LogCut) -> ReadPlan:
        plan = super().plan(cut)
        return replace(plan, ranges=tuple(replace(each, records=ALONE_MAX) for each in plan.ranges))


@pytest.mark.parametrize("name", [RANGES_OUTPUT, COUNTS_OUTPUT])
@pytest.mark.parametrize("change", ["lost", "twice"])
def test_lost_or_duplicated_output_is_an_error(name: str, change: str, source: SegmentSource) -> None:
    class LossyEngine(LocalEngine):
        """An engine that loses or duplicates one task output."""

        def run(self, task: RangeTask, ranges: Sequence[LogRange]) -> list[NamedOutput]:
            outputs = super().run(task, ranges)
            wrong = next(each for each in outputs if each.name == name)
            return [each for each in outputs if each is not wrong] + [wrong] * 2 * (change == "twice")

    with pytest.raises(ResultsIncomplete, match="the results are incomplete: "):
        rebuild(LossyEngine(1), source)


def test_states_that_the_driver_cannot_find_are_an_error(
    source: SegmentSource, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a cluster whose executors write to local disks, the driver does not find the files."""
    monkeypatch.setattr("coordinator.recovery.rebuild._write_states", lambda *arguments: ())
    with pytest.raises(ResultsIncomplete, match="states were folded and 0 are in"):
        rebuild(ALONE, source, to=tmp_path / "results")
    assert not (tmp_path / "results" / MANIFEST).exists()


def test_states_of_earlier_attempt_are_deleted(source: SegmentSource, tmp_path: Path) -> None:
    run = rebuild(ALONE, PrunedSource(source, times=2), to=tmp_path / "results")
    names = sorted(path.name for path in (tmp_path / "results" / "states.parquet").iterdir())
    assert names == ["00000-0.parquet", "00001-2.parquet", "00002-0.parquet"]
    assert len(pq.read_table(tmp_path / "results" / "states.parquet")) == run.manifest["states"]
    stale = tmp_path / "stale"
    rebuild(ALONE, source, to=stale)
    (stale / "states.parquet" / "00001-0.parquet").rename(stale / "states.parquet" / "00001-1.parquet")
    shutil.copy(stale / "states.parquet" / "00000-0.parquet", stale / "states.parquet" / "00001-0.parquet")
    check_written_states(open_folder(stale), rebuild(ALONE, source).totals)
    assert not (stale / "states.parquet" / "00001-0.parquet").exists()


def test_errors_are_pickled_completely() -> None:
    for error in (LogDamaged("f", 3, "found", "advice"), ConfigError("a", 1, "b"), PrunedError(1, 2)):
        again = pickle.loads(pickle.dumps(error))
        assert (type(again), str(again), vars(again)) == (type(error), str(error), vars(error))


def test_damage_found_in_process_is_reported_unchanged(source: SegmentSource, tmp_path: Path) -> None:
    first = min((tmp_path / "disk" / f"{TOPIC}-1").glob("*.log"))
    first.write_bytes(first.read_bytes()[:-1])
    engine = LocalEngine(2)
    (damage,) = rebuild(engine, OverstatedSegments(source.folder)).manifest["damages"]
    engine.close()
    assert damage["state_partition"] == 1
    assert "its last batch is cut off" in damage["what"]


@dataclass
class PrunedSource:
    """A source whose log is written and pruned `times` times during the read."""

    inner: SegmentSource
    times: int
    step: int = 100
    text: str = "pruned"
    end: int = 200
    starts: dict[int, int] = field(default_factory=dict)

    def plan(self, cut: LogCut) -> ReadPlan:
        """Plan the remaining records."""
        plan = self.inner.plan(cut)
        ends = {p: min(self.end, cut.end(p)) for p in range(3)}
        left = [
            replace(
                each,
                start=max(each.start, self.starts.get(each.state_partition, 0)),
                end=min(each.end, ends[each.state_partition]),
            )
            for each in plan.ranges
        ]
        starts = {**plan.starts, **self.starts}
        return ReadPlan(tuple(each for each in left if each.start < each.end), starts, ends)

    def read(self, log_range: LogRange) -> Iterator[Records]:
        """After the first chunk of state partition 1, write to the log and prune the partition."""
        for records in self.inner.read(log_range):
            yield records
            if log_range.state_partition == 1 and self.times:
                self.times -= 1
                self.starts[1] = self.starts.get(1, 0) + self.step
                self.end += self.step
                raise PrunedError(1, self.starts[1])


def test_partition_pruned_during_read_is_read_again_to_its_new_end(
    source: SegmentSource, partition_batches: dict[int, list[bytes]]
) -> None:
    run = rebuild(ALONE, PrunedSource(source, times=2))
    left = {**partition_batches, 1: encode_batches(make_varied_records(400, seed=1)[200:], base_offset=200)}
    found = [{**row, "last_write_ms": 0} for row in comparable_rows(sort_by_key(run.states.to_pylist()))]
    # Only the pruned state partition is read up to its new end; the results of the others do not change.
    wanted = load_expected_states(left, before={0: 200, 2: 200})
    assert found == [{**row, "last_write_ms": 0} for row in wanted]
    assert run.manifest["pruned_during_read"] == {"1": 200}
    assert {
        (number, of["start"], of["end"], of["read_to"]) for number, of in run.manifest["partitions"].items()
    } == {("0", 0, 200, 200), ("1", 200, 400, 400), ("2", 0, 200, 200)}
    with pytest.raises(LogUnavailable, match="pruned faster than it can be read"):
        rebuild(ALONE, PrunedSource(source, times=99, step=1))


def test_only_pruned_state_partition_with_a_cut_is_doubtful(source: SegmentSource) -> None:
    for cut, doubtful in ((LogCut({0: 50}), []), (LogCut({1: 150}), [1]), (LogCut(), [])):
        run = rebuild(ALONE, PrunedSource(source, times=0, starts={1: 100}), cut=cut)
        assert run.manifest["doubtful_partitions"] == doubtful
        assert len(run.manifest["notes"]) == len(doubtful)


def test_cut_that_is_pruned_during_read_is_refused(source: SegmentSource) -> None:
    assert rebuild(ALONE, PrunedSource(source, times=1), cut=LogCut({1: 150})).manifest["notes"]
    with pytest.raises(ConfigError, match="1:150 cannot be used: it must be at or above 200"):
        rebuild(ALONE, PrunedSource(source, times=2), cut=LogCut({1: 150}))


def test_results_are_valid_only_with_manifest(source: SegmentSource, tmp_path: Path) -> None:
    to = tmp_path / "results"
    run = rebuild(ALONE, source, to=to)
    assert read_manifest(to) == json.loads(json.dumps(run.manifest | {"files": read_manifest(to)["files"]}))
    assert read_manifest(to)["files"] == {
        "states.parquet": len(run.states),
        "ranges.parquet": len(run.ranges),
    }
    assert LazyStates.from_results(open_folder(to)).table.equals(run.states)
    assert pq.read_table(to / "states.parquet").schema.equals(STATES)
    assert pq.read_schema(to / "ranges.parquet").equals(RANGES)
    assert {path.name for path in to.iterdir()} == {"states.parquet", "ranges.parquet", MANIFEST}
    with pytest.raises(ConfigError, match="new or empty"):
        rebuild(ALONE, source, to=to)
    (to / MANIFEST).unlink()
    with pytest.raises(ConfigError, match="a run that finished"):
        Baseline.read(to)


def test_failed_run_leaves_no_manifest(
    source: SegmentSource, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: Any) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(Folder, "write", fail)
    with pytest.raises(OSError, match="no space"):
        rebuild(ALONE, source, to=tmp_path / "results")
    assert not (tmp_path / "results").exists()


def test_python_api_rebuilds_states_and_reads_records(
    source: SegmentSource, partition_batches: dict[int, list[bytes]]
) -> None:
    run = api.rebuild(source.text, engine="local", processes=1, as_of_offsets={0: 100})
    assert comparable_rows(sort_by_key(run.states.to_pylist())) == load_expected_states(
        partition_batches, before={0: 100}
    )
    assert len(api.records(source.text)) == 1_200


def test_history_matches_records(source: SegmentSource) -> None:
    found = api.history(source.text).to_pylist()
    assert len(found) == 1_200
    assert {row["kind"] for row in found} == {"snapshot", "update", "tombstone"}
    records = sorted(found, key=lambda row: (row["state_partition"], row["log_offset"]))
    key, value = make_varied_records(400, seed=0)[0]
    record = decode_record(key, value)
    assert record is not None
    first = records[0]
    assert (first["group_id"], first["partition"]) == (record.key.group_id, record.key.partition)
    assert isinstance(record.value, ShareUpdateValue | ShareSnapshotValue)
    assert first["start_offset"] == record.value.start_offset
    assert [StateBatch(**batch) for batch in first["state_batches"]] == list(
        unpack(record.value.state_batches)
    )


class FakeTerminal(io.StringIO):
    """A stream that reports to be a terminal."""

    def isatty(self) -> bool:
        return True


def test_progress_is_shown_on_terminal_only(source: SegmentSource, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal, file = FakeTerminal(), io.StringIO()
    for stream in (terminal, file):
        monkeypatch.setattr(sys, "stderr", stream)
        rebuild(ALONE, source)
    assert file.getvalue() == ""
    assert "state partitions" in terminal.getvalue()


def test_times_are_parsed_and_formatted() -> None:
    assert parse_time("2026-11-20T09:41:00Z") == parse_time("2026-11-20T09:41") == 1_795_167_660_000
    assert parse_time("2026-11-20T10:41:00.5+01:00") == 1_795_167_660_500
    assert iso_time(1_795_167_660_500) == "2026-11-20T09:41:00.500Z"
    # The first and the last time of ISO 8601, and those that a time zone moves beyond them.
    assert {parse_time(text) for text in ("0001-01-01", "0001-01-01T00:00+14:00", "1969-12-31")} == {-1}
    assert iso_time(parse_time("9999-12-31T23:59:59.9999")) == "10000-01-01T00:00:00.000Z"
    assert iso_time(2**63 - 1).startswith("292278994-08-17T")
    with pytest.raises(ConfigError):
        parse_time("yesterday")


@pytest.mark.parametrize(
    ("records", "tasks"),
    [
        ([1, 2, 3], 1),
        ([0] * 50, 1),
        ([100_000] * 50, 20),
        ([2_000_000] * 50, 50),
        ([10_000_000, *[0] * 49], 40),
        ([UNKNOWN_SIZE] * 50, 50),
        ([], 0),
    ],
)
def test_one_spark_task_reads_several_small_ranges(records: list[int], tasks: int) -> None:
    ranges = [LogRange(number, 0, 9, each, number=number) for number, each in enumerate(records)]
    found = divide_ranges(ranges)
    assert len(found) == tasks
    assert sorted(each.number for task in found for each in task) == list(range(len(records)))
    assert all(len(task) <= -(-len(records) // tasks) for task in found)


def test_spark_tasks_share_the_row_groups_of_an_archive() -> None:
    ranges = [LogRange(number, 0, 9, 10, row_groups=100 * (number < 2)) for number in range(50)]
    found = divide_ranges(ranges)
    assert len(found) == 16
    assert [task[0].row_groups for task in found[:3]] == [100, 100, 0]


def test_unknown_engine_is_refused() -> None:
    with pytest.raises(ConfigError, match="auto, local, spark"):
        open_engine("flink")
    with pytest.raises(ConfigError, match="--engine spark"):
        open_engine("local", master="local[2]")


@pytest.mark.parametrize(
    ("message", "cause"),
    [
        ("An error occurred while calling None.x.\n: java.lang.E: no disk\n\tat y", "java.lang.E: no disk"),
        (
            "An error occurred while calling None.x.\n: java.lang.E: Cannot call methods on a stopped "
            "SparkContext.\nThis",
            "no master answers at this address, or it rejects the application",
        ),
        (
            "[JAVA_GATEWAY_EXITED] Java gateway process exited.",
            "Java exited, see its output above; Spark requires Java 17 or later (apt-get install "
            "openjdk-17-jre-headless)",
        ),
        ("", "ValueError"),
    ],
)
def test_cause_of_failed_spark_start_is_one_line(message: str, cause: str) -> None:
    assert spark_session.format_start_error(ValueError(message)) == cause


def test_missing_pyspark_is_reported_with_install_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyspark.sql", None)
    with pytest.raises(SparkUnavailable, match=r"pip install share-coordinator\[spark\]"):
        get_or_start_session()
