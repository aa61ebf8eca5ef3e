"""Test that the Python API returns the same rows with Spark Connect as with the local engine."""

import os
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest

from coordinator.recovery import api
from coordinator.recovery.audit import AuditOptions, audit
from coordinator.recovery.engines import LocalEngine
from coordinator.recovery.rebuild import rebuild
from coordinator.recovery.schema import HISTORY, RECORDS, STATES
from coordinator.recovery.sources import open_source

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(600)]


def test_api_accepts_session_of_spark_connect(tmp_path: Path) -> None:
    """A process can have only one kind of Spark session, so a separate process makes the comparisons."""
    from tests.recovery.test_docs import write_example_log

    write_example_log(tmp_path / "log")
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    command = [sys.executable, "-m", "tests.recovery.test_spark_connect", str(tmp_path)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 0, done.stderr[-6_000:]
    assert done.stdout.splitlines()[-1] == "all frames are equal"


def compare_frames(spark: Any, source: str, folder: Path) -> None:
    """Compare the DataFrames of the API with the local engine's results; states are written to a folder."""
    alone, opened = LocalEngine(1), open_source(source)
    by_offset = [("state_partition", "ascending"), ("log_offset", "ascending")]
    for read, schema in ((api.records, RECORDS), (api.history, HISTORY)):
        frame: Any = read(source, spark=spark)
        local: Any = read(source)
        assert frame.columns == schema.names
        assert frame.toArrow().cast(schema).sort_by(by_offset).equals(local.sort_by(by_offset))
    frame = api.states(spark, source, to=str(folder / "states"))
    by_key = [(name, "ascending") for name in ("group_id", "topic_id", "partition", "state_partition")]
    assert frame.toArrow().cast(STATES).sort_by(by_key).equals(rebuild(alone, opened).states)
    found = audit(alone, opened, AuditOptions()).findings
    assert api.findings(spark, source).count() == len(found) > 0


def main() -> None:
    """Start a session of Spark Connect, and run `compare_frames`."""
    from pyspark.sql import SparkSession

    warnings.simplefilter("ignore")
    spark: Any = SparkSession.builder.remote("local[2]").getOrCreate()
    assert "connect" in type(spark).__module__
    folder = Path(sys.argv[1])
    compare_frames(spark, f"segments:{folder / 'log'}", folder)
    spark.stop()
    print("all frames are equal")


if __name__ == "__main__":
    main()
