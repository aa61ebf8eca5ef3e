"""Test jobs on a standalone Spark cluster: killing an executor never changes a result silently."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from coordinator.recovery.engines import LocalEngine
from coordinator.recovery.sources.base import LogCut
from coordinator.recovery.sources.journal import JournalSource
from protocol.messages.share_snapshot import ShareSnapshotValue
from protocol.state_batches import StateBatch, pack
from protocol.state_records import StateRecord, decode_record, encode_record
from tests.kafka import BuiltInRig
from tests.recovery.executor_kills import STATE_PARTITIONS, prune_journal
from tests.recovery.executor_loss import rebuild_states
from tests.recovery.logs_on_disk import make_varied_records, write_journal
from tests.recovery.spark_cluster import spark_cluster
from tests.recovery.test_jobs_on_coordinators import run_coordinator

# All jobs run in the setup of the first test.
pytestmark = [pytest.mark.broker, pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(1_800)]

_RECORDS = 200


def _write_log(folder: Path) -> None:
    """Write a journal.

    In the middle of the log, at log offset `_RECORDS`, every share-partition has a snapshot.
    """
    history = {p: make_varied_records(2 * _RECORDS, seed=p) for p in range(STATE_PARTITIONS)}
    first = {p: records[:_RECORDS] for p, records in history.items()}
    second = {p: [*_make_snapshots(records), *records[_RECORDS:]] for p, records in history.items()}
    for records in (first, second):
        write_journal(folder, records, state_partitions=STATE_PARTITIONS)


def _make_snapshots(records: list[tuple[bytes, bytes | None]]) -> list[tuple[bytes, bytes | None]]:
    """Return a snapshot of each share-partition."""
    keys = {record.key for record in (decode_record(*each) for each in records) if record is not None}
    value = ShareSnapshotValue(9, 1, 2, 0, 5, 6, pack([StateBatch(0, 4, 2, 1)]), -1)
    return [encode_record(StateRecord(key, value)) for key in sorted(keys)]


@pytest.fixture(scope="module")
def job_outcomes(built_in: BuiltInRig, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Run all jobs in one Spark session, because a session and its executors take seconds to start."""
    folder = tmp_path_factory.mktemp("cluster")
    _write_log(folder / "journal")
    shutil.copytree(folder / "journal", folder / "served")
    with (
        spark_cluster(folder) as cluster,
        run_coordinator(folder, data=folder / "served", partitions=STATE_PARTITIONS) as live,
    ):
        command = [
            *(sys.executable, "-m", "tests.recovery.executor_loss", cluster.master, str(folder / "journal")),
            *(str(folder), str(_RECORDS), f"127.0.0.1:{live.port}", built_in.broker.bootstrap),
        ]
        environment = cluster.environment(**{"spark.task.maxFailures": "2"})
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=1_500, check=False
        )
    assert done.returncode == 0, done.stderr[-4_000:]
    found: dict[str, Any] = json.loads((folder / "outcomes.json").read_text())
    return found


@pytest.mark.parametrize(
    ("job", "phases"),
    [
        ("rebuild", ["read", "results"]),
        ("audit", ["results"]),
        ("diff", ["results"]),
        ("rewrite", ["read"]),
        ("topic", ["write", "write without executor"]),
        ("archive", ["read", "write"]),
    ],
)
def test_result_is_unchanged_when_executors_are_killed(
    job: str, phases: list[str], job_outcomes: dict[str, Any]
) -> None:
    """The job `rebuild` reads a journal that is pruned meanwhile.

    In the phase `results`, a task has also compared the states with a baseline or a coordinator, and written
    them. In the phase `write`, the job `rewrite` has written a part of the records of a topic; the next
    attempt writes the rest. All jobs except `archive` have the same phases, so not every phase of every job
    is interrupted.
    """
    found = job_outcomes[job]
    assert found["killed"] == phases
    assert found["disturbed"] == found["undisturbed"]


def test_command_fails_without_results_when_every_attempt_is_killed(job_outcomes: dict[str, Any]) -> None:
    found = job_outcomes["without end"]
    assert (found["status"], found["left"]) == (1, [])
    assert re.search("Spark failed: .*executor.* exited", found["error"]), found["error"]


def test_compared_job_results_are_not_empty(job_outcomes: dict[str, Any]) -> None:
    """If the results were empty, comparisons of two results would always succeed."""
    assert len(job_outcomes["rebuild"]["undisturbed"]) > 100
    assert (
        job_outcomes["audit"]["undisturbed"]["records"] == job_outcomes["archive"]["undisturbed"]["records"]
    )
    checks = {row["check"] for row in job_outcomes["audit"]["undisturbed"]["findings"]}
    assert checks >= {"X3", "R8"}
    assert job_outcomes["diff"]["undisturbed"]["compared"] > 100
    for job in ("rewrite", "topic"):
        assert len(job_outcomes[job]["undisturbed"]["states"]) > 100


def count_segments(source: JournalSource) -> int:
    return len(source.plan(LogCut()).ranges[0].place.segments)


def test_pruning_of_journal_removes_segments_and_keeps_states(tmp_path: Path) -> None:
    _write_log(tmp_path)
    source, engine = JournalSource(str(tmp_path)), LocalEngine(1)
    before, segments = rebuild_states(source, engine), count_segments(source)
    prune_journal(tmp_path, _RECORDS)
    assert count_segments(source) < segments - segments // 4
    assert rebuild_states(source, engine) == before
