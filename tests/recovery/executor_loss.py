"""A Spark driver that runs jobs whose executors are killed, while the log is pruned.

    python -m tests.recovery.executor_loss MASTER JOURNAL FOLDER PRUNE_BEFORE LIVE KAFKA

LIVE is the address of a coordinator that serves a copy of JOURNAL, and KAFKA is the address of a broker.
JOURNAL is the undisturbed log; each job gets its own copy in FOLDER, and one job prunes it to the log offset
PRUNE_BEFORE. The driver writes FOLDER/outcomes.json. For each job, it has the kills that took place, the
result of the local engine on the undisturbed log, and the result with Spark.
"""

import io
import json
import shutil
import sys
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import redirect_stderr
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from coordinator.cli import main as command_line
from coordinator.cli import recovery_commands
from coordinator.config import load_config
from coordinator.operate.migration import MigrationOptions
from coordinator.recovery import archive_stream
from coordinator.recovery.archive import archive
from coordinator.recovery.audit import AuditOptions, audit
from coordinator.recovery.checks.baseline import Baseline
from coordinator.recovery.engines import Engine, LocalEngine
from coordinator.recovery.engines import spark as spark_engine
from coordinator.recovery.engines.spark import SparkEngine
from coordinator.recovery.engines.spark_session import get_or_start_session
from coordinator.recovery.folders import open_folder
from coordinator.recovery.live_comparison import diff
from coordinator.recovery.rebuild import rebuild
from coordinator.recovery.rewrite import TargetWriter, rewrite
from coordinator.recovery.schema import STATES
from coordinator.recovery.sources import journal as journal_source
from coordinator.recovery.sources.archive import ArchiveSource
from coordinator.recovery.sources.base import LogRange, RangeTask, Source
from coordinator.recovery.sources.journal import JournalSource
from coordinator.recovery.sources.topic import TopicSource
from coordinator.recovery.tasks import NamedOutput
from tests.recovery.executor_kills import (
    ExecutorKill,
    InterruptedSource,
    copy_records_and_kill_executor,
    interrupted_data_source,
    run_and_kill_executor,
    write_topic_and_kill_executor,
)
from tests.recovery.log_strategies import comparable_rows, sort_by_key
from tests.recovery.logs_on_disk import read_log_offsets
from tests.recovery.test_jobs_on_coordinators import ONE_COPY

# The executor is killed while its task reads, when the task has its results, or when the task has written
# files of an archive or a part of a topic. In the last phase, the Python worker that writes the topic
# survives its executor.
_PHASES = ("read", "results", "write", "write without executor")
# The number of the range in which the executor is killed while it reads.
_INTERRUPTED_RANGE = 1
# A journal of the tests has a range for each state partition, and a task of Spark reads two of them.
_RANGE_RECORDS = 100
_TASK_RECORDS_MIN = 200

# Columns that depend on the time of a rewrite, or on the order of its appends.
_OWN_COLUMNS = ["write_timestamp", "last_write_ms", "needed_from", "last_log_offset"]

Job = Callable[[Engine, Source, Path], Any]


def rebuild_states(source: Source, engine: Engine) -> Any:
    """Run `rebuild`, and return the states as a coordinator has them in memory."""
    return comparable_rows(sort_by_key(rebuild(engine, source).states.to_pylist()))


def rebuild_job(engine: Engine, source: Source, folder: Path) -> Any:
    """Run `rebuild`."""
    return rebuild_states(source, engine)


def audit_job(engine: Engine, source: Source, folder: Path) -> Any:
    """Run `audit`, whose executors compare the states with a baseline, and write them.

    The snapshot epochs of the baseline are higher, so each share-partition has a finding (X3). The result
    includes the number of records.
    """
    earlier = folder / f"baseline-{engine.name}"
    states = rebuild(LocalEngine(1), source, to=earlier).states
    epochs = pc.add(states.column("snapshot_epoch"), 1).cast(pa.int32())
    place = STATES.get_field_index("snapshot_epoch")
    shutil.rmtree(earlier / "states.parquet")
    open_folder(earlier).write_parquet(
        "states.parquet", states.set_column(place, STATES.field(place), epochs)
    )
    to = folder / f"results-{engine.name}"
    options = AuditOptions(state_partitions=5, to=to, baseline=Baseline.read(earlier))
    found = audit(engine, source, options)
    return {
        "answer": found.verdict.headline,
        "findings": found.findings.to_pylist(),
        "records": found.manifest["totals"]["records"],
        "states": comparable_rows(sort_by_key(found.states.to_pylist())),
    }


def diff_job(live: str, engine: Engine, source: Source, folder: Path) -> Any:
    """Run `diff`, whose executors read the states from the coordinator."""
    found = diff(engine, source, live)
    return {
        **{name: getattr(found, name) for name in ("compared", "equal", "equal_later", "unlisted")},
        "different": [str(each) for each in found.different],
        "unknown": {str(key): why for key, why in found.unknown.items()},
    }


def rewrite_job(engine: Engine, source: Source, folder: Path) -> Any:
    """Run `rewrite`, and return the states of the new journal."""
    target = folder / f"rewritten-{engine.name}"
    config = load_config({}, {"SHARE_COORDINATOR_JOURNAL_SEGMENT_BYTES": str(1 << 20)}, None).config
    done = rewrite(
        *(engine, source, f"journal:{target}", config),
        state_partitions=5,
        options=MigrationOptions(execute=True),
        work=folder / f"work-{engine.name}",
    )
    states = rebuild(LocalEngine(1), JournalSource(str(target))).states.drop_columns(_OWN_COLUMNS)
    return {"good": done.is_successful, "states": states.to_pylist()}


def rewrite_to_topic_job(bootstrap: str, engine: Engine, source: Source, folder: Path) -> Any:
    """Run `rewrite` to a topic, and return the states of the topic."""
    topic = f"rewritten-{engine.name}"
    settings = {"log": "kafka", "bootstrap.servers": bootstrap, **ONE_COPY}
    config = load_config(settings, {}, None).config
    done = rewrite(
        *(engine, source, f"kafka:{topic}", config),
        state_partitions=5,
        options=MigrationOptions(execute=True),
        work=folder / f"work-topic-{engine.name}",
    )
    states = rebuild(LocalEngine(1), TopicSource(topic, bootstrap)).states.drop_columns(_OWN_COLUMNS)
    return {"good": done.is_successful, "states": states.to_pylist()}


def archive_job(engine: Engine, source: Source, folder: Path) -> Any:
    """Run `archive`: with Spark as a stream, otherwise as a local job."""
    target = folder / f"archive-{engine.name}"
    if isinstance(engine, SparkEngine):
        done = archive_stream.archive_stream(engine.spark, source, target)
    else:
        done = [archive(source, target)]
    copied = {
        str(number): offsets for number, offsets in read_log_offsets(ArchiveSource(str(target))).items()
    }
    return {"records": sum(each.records for each in done), "offsets": copied}


JOBS: Mapping[str, Job] = {
    "rebuild": rebuild_job,
    "audit": audit_job,
    "rewrite": rewrite_job,
    "archive": archive_job,
}


class InterruptedEngine(SparkEngine):
    """An engine that kills the executor of a task when the task has its results, or writes a topic."""

    kills: Mapping[str, ExecutorKill]

    def run(self, task: RangeTask, ranges: Sequence[LogRange]) -> list[NamedOutput]:
        """Run the task for each range."""
        interrupted: RangeTask = partial(run_and_kill_executor, self.kills["results"], task)
        if isinstance(task, TargetWriter) and task.options.execute:
            kills = [self.kills["write"], self.kills["write without executor"]]
            interrupted = partial(write_topic_and_kill_executor, kills, task)
        return super().run(interrupted, ranges)


class ExecutorLossJobs:
    """Runs the jobs in one Spark session."""

    def __init__(self, master: str, journal: Path, folder: Path, live: str, bootstrap: str) -> None:
        self._jobs = {
            **JOBS,
            "diff": partial(diff_job, live),
            "topic": partial(rewrite_to_topic_job, bootstrap),
        }
        self._journal = journal
        self._folder = folder
        self._engine = InterruptedEngine(get_or_start_session(master))

    def run(self, name: str, kill_in: Collection[str], *, prune_before: int = 0) -> dict[str, Any]:
        """Run a job, and kill one executor in each phase of `kill_in`.

        With `prune_before`, the log is pruned below this log offset just before the kill in the phase `read`.
        """
        folder = self._folder / name
        log = shutil.copytree(self._journal, folder / "journal")
        kills = {phase: ExecutorKill(str(folder / phase), is_off=phase not in kill_in) for phase in _PHASES}
        kills["write without executor"] = replace(kills["write without executor"], worker_survives=True)
        if prune_before:
            kills["read"] = replace(kills["read"], pruned=str(log), prune_before=prune_before)
        self._engine.kills = kills
        source: Source = JournalSource(str(log))
        if name == "archive":
            archive_stream.StateLogDataSource = interrupted_data_source(kills["read"])  # type: ignore[misc]
            archive_stream.copy_records = partial(copy_records_and_kill_executor, kills["write"])
        else:
            source = InterruptedSource(source, _INTERRUPTED_RANGE, kills["read"])
        undisturbed = self._jobs[name](LocalEngine(1), JournalSource(str(self._journal)), folder)
        disturbed = self._jobs[name](self._engine, source, folder)
        killed = [phase for phase in _PHASES if Path(kills[phase].marker).exists()]
        return {"killed": killed, "undisturbed": undisturbed, "disturbed": disturbed}

    def rebuild_with_every_attempt_killed(self) -> dict[str, Any]:
        """Run the command `rebuild --to`. Each executor that reads a certain range is killed."""
        kill = ExecutorKill(str(self._folder / "without-end"), repeats=True)
        source = InterruptedSource(JournalSource(str(self._journal)), 2, kill)
        recovery_commands.open_source = lambda *arguments: source  # type: ignore[assignment]
        results = self._folder / "results"
        command = ["share-coordinator", "recovery", "rebuild", "--from", source.text]
        sys.argv = [*command, "--engine", "spark", "--to", str(results)]
        error, status = io.StringIO(), None
        with redirect_stderr(error):
            try:
                command_line()
            except SystemExit as ended:
                status = ended.code
        left = [str(path) for path in results.rglob("*") if path.is_file()]
        return {"status": status, "error": error.getvalue(), "left": left}


def main() -> None:
    master, journal, folder, prune_before, live, bootstrap = sys.argv[1:]
    warnings.simplefilter("ignore")
    journal_source._RANGE_RECORDS = _RANGE_RECORDS
    spark_engine._TASK_RECORDS_MIN = _TASK_RECORDS_MIN
    driver = ExecutorLossJobs(master, Path(journal), Path(folder), live, bootstrap)
    outcomes = {
        "rebuild": driver.run("rebuild", ["read", "results"], prune_before=int(prune_before)),
        "audit": driver.run("audit", ["results"]),
        "diff": driver.run("diff", ["results"]),
        "rewrite": driver.run("rewrite", ["read"]),
        "topic": driver.run("topic", ["write", "write without executor"]),
        "archive": driver.run("archive", ["read", "write"]),
        "without end": driver.rebuild_with_every_attempt_killed(),
    }
    (Path(folder) / "outcomes.json").write_text(json.dumps(outcomes, default=repr))


if __name__ == "__main__":
    main()
