"""`python -m tests.benchmarks.recovery_memory`: measure the peak memory of a Spark driver.

The job runs on a standalone cluster. Therefore, the two processes of the driver (Python and its JVM) have
only the data that executors send to them. The log has one snapshot for each share-partition.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from coordinator.recovery.audit import AuditOptions, audit
from coordinator.recovery.engines.spark import SparkEngine
from coordinator.recovery.engines.spark_session import get_or_start_session
from coordinator.recovery.rebuild import rebuild
from coordinator.recovery.sources.segments import SegmentSource
from protocol.messages.share_snapshot import ShareSnapshotValue
from protocol.record_batch import encode_batch
from protocol.routing import state_partition
from protocol.state_batches import StateBatch, pack
from protocol.state_records import SharePartitionKey, StateRecord, encode_record
from tests.benchmarks.machine import peak_mib
from tests.benchmarks.state_logs import BATCH_RECORDS, BEGAN_MS, TOPIC
from tests.recovery.spark_cluster import spark_cluster

_STATE_PARTITIONS = 50


def write_snapshots(folder: Path, share_partitions: int) -> None:
    """Write a log with one snapshot of each share-partition."""
    value = ShareSnapshotValue(
        0, 1, 3, 100, BEGAN_MS, BEGAN_MS, pack([StateBatch(100, 139, 2, 1), StateBatch(140, 142, 0, 2)]), 40
    )
    records: dict[int, list[tuple[bytes, bytes | None]]] = {n: [] for n in range(_STATE_PARTITIONS)}
    for number in range(share_partitions):
        topic_id = (number // 64 + 1).to_bytes(16)
        key = SharePartitionKey(f"orders-{number % 997:03d}", topic_id, number % 64)
        records[state_partition(key, _STATE_PARTITIONS)].append(encode_record(StateRecord(key, value)))
    for number, found in records.items():
        directory = folder / f"{TOPIC}-{number}"
        directory.mkdir(parents=True)
        with (directory / f"{0:020}.log").open("wb") as file:
            for at in range(0, len(found), BATCH_RECORDS):
                part = found[at : at + BATCH_RECORDS]
                file.write(encode_batch(at, BEGAN_MS, part, leader_epoch=1))


def run_driver(job: str, master: str, log: Path, folder: Path) -> None:
    """Run a job as the driver, and print its figures."""
    began_s = time.perf_counter()
    engine = SparkEngine(get_or_start_session(master))
    source, to = SegmentSource(str(log)), folder / "results"
    if job == "rebuild":
        states = rebuild(engine, source, to=to).manifest["states"]
    else:
        states = audit(engine, source, AuditOptions(to=to), with_states=False).manifest["states"]
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    jvm = max(peak_mib(pid) for pid in children)
    engine.close()
    figures = {
        "job": job,
        "share_partitions": states,
        "python_peak_mib": peak_mib(),
        "jvm_peak_mib": jvm,
        "seconds": round(time.perf_counter() - began_s, 1),
    }
    print(json.dumps(figures))


def main() -> int:
    """Write the log, start the cluster, and run the driver of each job."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.benchmarks.recovery_memory", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--share-partitions", type=int, default=1_000_000)
    parser.add_argument("--jobs", default="rebuild,audit")
    parser.add_argument("--log", type=Path, help="keep the log here for the next run")
    parser.add_argument("--driver", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.driver:
        job, master, folder = options.driver
        run_driver(job, master, options.log, Path(folder))
        return 0
    with tempfile.TemporaryDirectory(prefix="share-coordinator-bench-") as temporary:
        log = options.log or Path(temporary) / "log"
        if not log.exists():
            write_snapshots(log, options.share_partitions)
        with spark_cluster(Path(temporary)) as cluster:
            for job in options.jobs.split(","):
                done = subprocess.run(
                    [
                        *(sys.executable, "-m", "tests.benchmarks.recovery_memory", "--log", str(log)),
                        *("--driver", job, cluster.master, f"{temporary}/{job}"),
                    ],
                    env=cluster.environment(),
                    capture_output=True,
                    text=True,
                    check=False,
                )
                print(done.stdout if done.returncode == 0 else done.stderr[-4_000:], end="", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
