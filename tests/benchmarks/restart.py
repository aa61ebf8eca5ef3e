"""Measure how fast this coordinator and Kafka's load their state after a restart: `make bench-restart`.

Both coordinators receive the same requests. Then they are restarted in turn, several times: Kafka after a
controlled shutdown, this coordinator after a `kill -9` right after the last response, so that no record is
compacted away.  Kafka's time is from its first log line about loading a state partition to the last, without
the start of the broker.  This coordinator's time is from the start of the process until it serves all shards,
minus the time of a start without state. So it includes the recovery of the journal.
"""

import argparse
import json
import re
import statistics
import tempfile
import time
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

from rich.table import Table

from tests.benchmarks.load import measure_workload
from tests.benchmarks.loads import WriteLoad
from tests.benchmarks.machine import Machine
from tests.benchmarks.report import wide_console
from tests.benchmarks.spread import ratio_spread
from tests.benchmarks.start_systems import NEWEST, TOPIC_IDS, coordinator_process
from tests.benchmarks.system_under_test import PARTITIONS
from tests.kafka.built_in import STATE_PARTITIONS, ready_coordinator
from tests.kafka.coordinator import CoordinatorProcess
from tests.kafka.jars import SHIPPED_BROKER_JVM, fetch_jars
from tests.kafka.processes import wait_until
from tests.kafka.rig import BuiltInRig, built_in_rig
from tests.kafka.toolchain import install_hint, missing_programs

AIM = 2.0
_TOLD = WriteLoad(8, 50, 4)
# A prune interval longer than the benchmark, so that every record is loaded after a restart.
_NEVER_MS = str(24 * 3_600_000)
_BEGAN = re.compile(r"^\[([^\]]+)\] INFO .*Scheduling loading of metadata from __share_group_state-\d+ ")
_ENDED = re.compile(
    r"^\[([^\]]+)\] INFO .*Finished loading of metadata from __share_group_state-\d+ .*"
    r"Loaded (\d+) records which total to (\d+) bytes"
)


class LoadResult(NamedTuple):
    """The number of loaded records and the loading time of one start."""

    records: int
    seconds: float

    @property
    def per_second(self) -> float:
        return self.records / self.seconds


def parse_kafka_load(log: str) -> LoadResult | None:
    """Parse a broker's log since its start; return None until all state partitions are loaded."""
    began: list[datetime] = []
    ended: list[tuple[datetime, int]] = []
    for line in log.splitlines():
        if found := _BEGAN.match(line):
            began.append(_parse_log_time(found[1]))
        elif found := _ENDED.match(line):
            ended.append((_parse_log_time(found[1]), int(found[2])))
    if len(ended) < STATE_PARTITIONS:
        return None
    took = max(when for when, _ in ended) - min(began)
    return LoadResult(sum(records for _, records in ended), took.total_seconds())


def _parse_log_time(text: str) -> datetime:
    return datetime.strptime(text, "%Y-%m-%d %H:%M:%S,%f")


def start_kafka(rig: BuiltInRig) -> LoadResult:
    """Restart a broker with a controlled shutdown, and return its loading time."""
    process = rig.broker.process
    rig.broker.stop()
    begins_at = process.log.stat().st_size
    rig.broker.start()

    def parse_new_log() -> LoadResult | None:
        return parse_kafka_load(process.log.read_bytes()[begins_at:].decode(errors="replace"))

    return wait_until(parse_new_log, seconds=120, what="Kafka has loaded all state partitions")


def start_coordinator(process: CoordinatorProcess, empty_s: float) -> LoadResult:
    """Start the killed coordinator, measure its loading time, and kill it again.

    `empty_s` is the start time of a coordinator without state, in seconds.
    """
    began_s = time.monotonic()
    process.start()
    took_s = time.monotonic() - began_s
    # The coordinator becomes ready a moment before it logs the duration.
    wait_until(
        lambda: process.process.count_logged("Loaded shards."),
        seconds=60,
        what="the log line about the loaded shards",
    )
    lines = [json.loads(line) for line in process.process.log.read_text().splitlines()]
    said = [line for line in lines if line.get("event") == "Loaded shards."][-1]
    process.kill()
    return LoadResult(said["records"], max(took_s - empty_s, said["seconds"]))


def measure_empty_start_s(folder: Path) -> float:
    """Return the median start time without state, from three starts."""
    with coordinator_process(folder, {}) as process:
        took = []
        for _ in range(3):
            process.stop()
            began_s = time.monotonic()
            process.start()
            took.append(time.monotonic() - began_s)
    return statistics.median(took)


def run_restarts(folder: Path, requests: int, rounds: int) -> dict[str, list[LoadResult]]:
    """Send the same requests to both coordinators and restart them in turn."""
    # With journal.sync=os, the disk does not affect the figures, and all writes end before the log is pruned.
    settings = {"share.coordinator.state.topic.prune.interval.ms": _NEVER_MS, "journal.sync": "os"}
    found: dict[str, list[LoadResult]] = {"ours": [], "Kafka": []}
    empty_s = measure_empty_start_s(folder / "empty")
    with coordinator_process(folder / "ours", settings) as process:
        measure_workload("127.0.0.1", process.port, TOPIC_IDS, _TOLD, 600.0, answers_max=requests)
        process.kill()
        kafka_folder = folder / "kafka"
        kafka_folder.mkdir()
        with built_in_rig(fetch_jars(NEWEST), kafka_folder, jvm=SHIPPED_BROKER_JVM) as rig:
            ready = ready_coordinator(rig, topic="bench", partitions=PARTITIONS)
            rig.client.close()
            measure_workload(ready.host, ready.port, [ready.topic_id], _TOLD, 600.0, answers_max=requests)
            for _ in range(rounds):
                found["ours"].append(start_coordinator(process, empty_s))
                found["Kafka"].append(start_kafka(rig))
    return found


def main() -> int:
    """Measure both coordinators and print the ratio."""
    parser = argparse.ArgumentParser(prog="make bench-restart", description=__doc__)
    parser.add_argument("--records", type=int, default=2_100_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("-o", "--output", choices=("table", "json"), default="table")
    options = parser.parse_args()
    console = wide_console()
    if missing := missing_programs():
        console.print(f"nothing to compare with: {install_hint(missing)}")
        return 1
    machine = Machine()
    with tempfile.TemporaryDirectory(prefix="share-coordinator-bench-") as name:
        found = run_restarts(Path(name), options.records // _TOLD.partitions, options.rounds)
    ratio = ratio_spread(*([each.per_second for each in found[side]] for side in ("ours", "Kafka")))
    if options.output == "json":
        sides: dict[str, Any] = {side: [each._asdict() for each in rounds] for side, rounds in found.items()}
        print(json.dumps({"machine": machine.properties(), "ratio": ratio._asdict(), "rounds": sides}))
        return 0
    for line in machine.lines():
        console.print(line, highlight=False)
    table = Table("", "records", "seconds", "records/s", box=None)
    for side, rounds in found.items():
        for each in rounds:
            table.add_row(side, f"{each.records:,}", f"{each.seconds:.2f}", f"{each.per_second:,.0f}")
    console.print(table)
    console.print(f"ours / Kafka: {ratio}, aim ≥ {AIM:g}, met: {'yes' if ratio.median >= AIM else 'NO'}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
