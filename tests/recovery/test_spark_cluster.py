"""The jobs on a standalone Spark cluster: a lost executor never changes a result silently."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.recovery.logs_on_disk import TOPIC, batches_of, expected, some_records, write_segments
from tests.recovery.spark_cluster import SparkCluster, spark_cluster

pytestmark = [pytest.mark.spark, pytest.mark.slow]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkCluster]:
    with spark_cluster(tmp_path_factory.mktemp("cluster")) as started:
        yield started


def test_states_survive_loss_of_all_executors_while_log_is_pruned(
    cluster: SparkCluster, tmp_path: Path
) -> None:
    partitions = {p: batches_of(some_records(500, seed=p)) for p in range(3)}
    for p, batches in partitions.items():
        write_segments(tmp_path / "disk" / f"{TOPIC}-{p}", batches, batches_in_file=30)
    found = _driver(cluster, "join", tmp_path)
    assert found["killed"] == 2
    assert found.get("states") == expected(partitions), found.get("error")
    assert found["records"] == 1_500


def _driver(cluster: SparkCluster, phase: str, folder: Path) -> dict[str, object]:
    """Run the driver whose executors are killed before a phase."""
    done = subprocess.run(
        [
            *(sys.executable, "-m", "tests.recovery.executor_loss", phase, cluster.master),
            *(
                str(folder / "disk"),
                str(folder / "pruned"),
                ",".join(map(str, cluster.workers)),
                str(folder / "work"),
            ),
        ],
        env=cluster.environment(),
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4_000:]
    said: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
    return said
