"""Test the jobs with a real Spark: compare results with the local engine and with independent SQL."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from coordinator.errors import ConfigError
from coordinator.recovery import api
from coordinator.recovery.engines import LocalEngine, open_engine
from coordinator.recovery.manifest import read_manifest
from coordinator.recovery.rebuild import rebuild
from coordinator.recovery.schema import STATES
from coordinator.recovery.sources.base import LogCut, ReadPlan
from coordinator.recovery.sources.journal import JournalSource
from coordinator.recovery.sources.segments import SegmentSource
from coordinator.recovery.state_tasks import STATES_OUTPUT, TOTALS_OUTPUT, first_states_task
from coordinator.recovery.tasks import NamedOutput
from tests.recovery.logs_on_disk import (
    TOPIC,
    encode_batches,
    make_varied_records,
    write_journal,
    write_segments,
)
from tests.recovery.test_spark_connect import compare_frames

if TYPE_CHECKING:
    from coordinator.recovery.engines.spark import SparkEngine

pytestmark = [pytest.mark.spark, pytest.mark.filterwarnings("ignore")]

LOCAL = LocalEngine(1)


@pytest.fixture(scope="module")
def segment_source(tmp_path_factory: pytest.TempPathFactory) -> SegmentSource:
    """A broker's disk with three partitions of varied records."""
    folder = tmp_path_factory.mktemp("disk")
    for p in range(3):
        write_segments(
            folder / f"{TOPIC}-{p}", encode_batches(make_varied_records(500, seed=p)), batches_in_file=30
        )
    return SegmentSource(str(folder))


def test_spark_and_local_engine_agree(spark_engine: "SparkEngine", segment_source: SegmentSource) -> None:
    for cut in (LogCut(), LogCut({0: 100, 2: 333})):
        theirs = rebuild(spark_engine, segment_source, cut=cut)
        ours = rebuild(LOCAL, segment_source, cut=cut)
        assert theirs.states.schema.equals(STATES)
        assert theirs.states.equals(ours.states)
        assert theirs.ranges.equals(ours.ranges)
        for same in ("partitions", "totals", "states", "state_batches"):
            assert theirs.manifest[same] == ours.manifest[same]
    assert theirs.manifest["versions"]["spark"].startswith("4.")


def test_only_selected_states_reach_driver(
    spark_engine: "SparkEngine", segment_source: SegmentSource
) -> None:
    theirs, ours = (
        rebuild(engine, segment_source, select=first_states_task(3)) for engine in (spark_engine, LOCAL)
    )
    assert theirs.states.equals(ours.states)
    assert len(theirs.states) == 9 < theirs.manifest["states"]
    assert ours.states.slice(0, 3).equals(rebuild(LOCAL, segment_source).states.slice(0, 3))


def test_api_returns_data_frames_with_the_rows_of_the_local_engine(
    spark_engine: "SparkEngine", segment_source: SegmentSource, tmp_path: Path
) -> None:
    spark = spark_engine.spark
    compare_frames(spark, segment_source.text, tmp_path)
    assert not list(tmp_path.glob("share-coordinator-*"))
    frame: Any = api.records(segment_source.text, spark=spark)
    assert frame.rdd.getNumPartitions() == len(segment_source.plan(LogCut()).ranges)
    assert (
        spark.read.parquet(str(tmp_path / "states" / "states.parquet")).where("start_offset = 80").count() > 0
    )
    assert api.findings(spark, segment_source.text).where("check = 'K1'").count() > 0


def test_executors_write_states_that_driver_does_not_read(
    spark_engine: "SparkEngine",
    segment_source: SegmentSource,
    tmp_path: Path,
    fetched_outputs: list[NamedOutput],
) -> None:
    """test_jobs_on_coordinators.py has the same test for an audit."""
    done = rebuild(spark_engine, segment_source, to=tmp_path / "spark")
    names = {output.name for output in fetched_outputs}
    assert TOTALS_OUTPUT in names
    assert STATES_OUTPUT not in names
    alone = rebuild(LOCAL, segment_source, to=tmp_path / "alone")
    assert done.states.equals(alone.states)
    assert read_manifest(tmp_path / "spark")["files"] == read_manifest(tmp_path / "alone")["files"]


def test_user_settings_are_not_replaced(tmp_path: Path) -> None:
    """Settings of spark-submit, `PYSPARK_SUBMIT_ARGS` and spark-defaults.conf take precedence."""
    (tmp_path / "spark-defaults.conf").write_text("spark.sql.session.timeZone Asia/Tokyo\n")
    script = (
        "from coordinator.recovery.engines.spark_session import get_or_start_session as start\n"
        "spark = start('local[1]')\n"
        "print(spark.conf.get('spark.sql.session.timeZone'))\n"
        "print(spark.conf.get('spark.sql.execution.arrow.maxRecordsPerBatch'))\n"
        "print(spark.conf.get('spark.sql.python.filterPushdown.enabled'))\n"
    )
    options = "--conf spark.sql.execution.arrow.maxRecordsPerBatch=7 --conf spark.ui.enabled=false"
    environment = {
        **os.environ,
        "SPARK_CONF_DIR": str(tmp_path),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_SUBMIT_ARGS": f"{options} pyspark-shell",
    }
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines() == ["Asia/Tokyo", "7", "true"]


def test_active_session_is_used_and_not_stopped(
    spark_engine: "SparkEngine", segment_source: SegmentSource, tmp_path: Path
) -> None:
    engine = open_engine("auto")
    assert engine.name == "spark"
    engine.close()
    with pytest.raises(ConfigError, match="a directory with Spark"):
        api.rebuild(segment_source.text)
    run = api.rebuild(segment_source.text, to=tmp_path / "states")
    assert run.manifest["engine"] == "spark"
    assert spark_engine.spark.range(3).count() == 3


def test_failure_in_task_is_one_line(spark_engine: "SparkEngine", tmp_path: Path) -> None:
    from coordinator.errors import LogError

    write_journal(tmp_path, {0: make_varied_records(50)})
    source = JournalSource(str(tmp_path))

    class DamagedAfterPlanning(JournalSource):
        """A journal that is damaged after planning."""

        def plan(self, cut: LogCut) -> ReadPlan:
            plan = source.plan(cut)
            path = tmp_path / plan.ranges[0].place.segments[0].file
            data = bytearray(path.read_bytes())
            data[1_000] ^= 1
            path.write_bytes(data)
            return plan

    with pytest.raises(LogError, match=r"damaged at byte \d+: a commit that was valid") as caught:
        rebuild(spark_engine, DamagedAfterPlanning(str(tmp_path)))
    assert "\n" not in str(caught.value)


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("command", "exit_code"), [("archive", 1), ("audit", 3)])
def test_repeated_job_ends_when_the_jvm_dies(command: str, exit_code: int, tmp_path: Path) -> None:
    """The supervisor (Compose, Kubernetes) then restarts the process with a new JVM."""
    write_journal(tmp_path / "journal", {0: make_varied_records(50)})
    environment = {
        **os.environ,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_SUBMIT_ARGS": "--conf spark.ui.enabled=false pyspark-shell",
    }
    options = [
        *("--from", f"journal:{tmp_path / 'journal'}", "--to", str(tmp_path / "results")),
        *("--engine", "spark", "--every", "1s"),
    ]
    with subprocess.Popen(
        [sys.executable, "-m", "coordinator", "recovery", command, *options],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        try:
            first_result = process.stdout.readline()
            assert "failed" not in first_result
            kill_child_jvm(process.pid)
            _, error = process.communicate(timeout=300)
        finally:
            process.kill()
    assert process.returncode == exit_code
    # Threads of PySpark may also print tracebacks, and Spark's progress bar does not end with a new line.
    reason = "the Spark session has ended (its JVM died or was stopped); restart this command"
    assert f"share-coordinator: {reason}\n" in error


def kill_child_jvm(parent: int) -> None:
    """Kill the JVM that a driver has started."""
    children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    (jvm,) = (pid for pid in children if Path(f"/proc/{pid}/comm").read_text() == "java\n")
    os.kill(int(jvm), signal.SIGKILL)
