"""A Spark driver that runs jobs on a secured Kafka cluster and an S3 server.

    python -m tests.recovery.secured_jobs MASTER TOPIC BOOTSTRAP SECURITIES URI FOLDER

SECURITIES is a list of the fields of `ClientSecurity`, as JSON.  Writes FOLDER/outcomes.json.
"""

import json
import os
import sys
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coordinator.client import ClientSecurity
from coordinator.recovery import api
from coordinator.recovery.archive_stream import archive_stream
from coordinator.recovery.engines.spark import SparkEngine
from coordinator.recovery.engines.spark_session import get_or_start_session
from coordinator.recovery.rebuild import rebuild
from coordinator.recovery.records import Records
from coordinator.recovery.sources import open_source
from coordinator.recovery.sources.base import LogRange
from coordinator.recovery.sources.topic import TopicSource
from tests.recovery.log_strategies import comparable_rows, sort_by_key
from tests.recovery.spark_cluster import executor_of_this_task


@dataclass(frozen=True)
class NotedSource(TopicSource):
    """A topic; each read leaves a file with the name of its executor."""

    notes: str = ""

    def read(self, log_range: LogRange) -> Iterator[Records]:
        """Read a range; fails if this process is not a Python worker of an executor."""
        Path(self.notes, str(executor_of_this_task())).touch()
        return super().read(log_range)


def state_rows(states: Any) -> list[dict[str, Any]]:
    """Return states as a coordinator has them in memory."""
    return comparable_rows(sort_by_key(states))


def main() -> None:
    """Rebuild with each security, then archive to S3 and rebuild from there."""
    master, topic, bootstrap, securities, uri, folder = sys.argv[1:]
    warnings.simplefilter("ignore")
    spark = get_or_start_session(master)
    outcomes: dict[str, Any] = {}
    access: dict[str, Any] = {}
    for fields in json.loads(securities):
        name = fields["mechanism"]
        notes = Path(folder, name)
        notes.mkdir()
        access = {"bootstrap_servers": bootstrap, "security": ClientSecurity(**fields)}
        source = NotedSource(topic, **access, notes=str(notes))
        states = rebuild(SparkEngine(spark), source).states.to_pylist()
        outcomes[name] = {"states": state_rows(states), "executors": len(os.listdir(notes))}
    source = open_source(f"kafka:{topic}", **access)
    done = archive_stream(spark, source, f"{uri}/archive")
    stored = api.states(spark, f"archive:{uri}/archive", to=f"{uri}/states")
    outcomes["archive"] = {
        "records": sum(each.records for each in done),
        "whole": all(each.is_whole for each in done),
        "states": state_rows([row.asDict(recursive=True) for row in stored.collect()]),
    }
    Path(folder, "outcomes.json").write_text(json.dumps(outcomes, default=repr))


if __name__ == "__main__":
    main()
