"""Measure an observer and the delivery history: `python -m tests.benchmarks.observing`.

An observer follows the topic of a coordinator with many share-partitions. The figures are the resident memory
of both processes, and the time from the response to a write until the observer shows it. Then a coordinator
with a journal writes, with and without concurrent requests for a delivery history.
"""

import argparse
import asyncio
import http.client
import json
import statistics
import tempfile
import threading
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from coordinator.client import RetryPolicy, ShareCoordinatorClient
from protocol.state_records import SharePartitionKey, topic_id_text
from tests.benchmarks.frames import ClientRequests
from tests.benchmarks.load import LoadFigures, drive_frames
from tests.benchmarks.machine import Machine, resident_bytes
from tests.benchmarks.many_states import GROUP_PARTITIONS
from tests.benchmarks.report import wide_console
from tests.benchmarks.resident_state import added_frames, latency_tails, measure_other_requests
from tests.benchmarks.start_systems import NEWEST, TOPIC_IDS, coordinator_process
from tests.kafka.coordinator import CoordinatorProcess
from tests.kafka.jars import fetch_jars
from tests.kafka.observer import ObserverProcess
from tests.kafka.ports import free_ports
from tests.kafka.rig import built_in_rig

TOPIC = "observed-state"
WRITES = 50
SECONDS = 3.0
ROUNDS = 6
_SHOWN_WITHIN_S = 60.0
_KEY = SharePartitionKey("lag", TOPIC_IDS[0], 0)
_PART = {"group": _KEY.group_id, "topic": topic_id_text(_KEY.topic_id), "partition": _KEY.partition}


def measure_observer(folder: Path, share_partitions: int) -> dict[str, Any]:
    """Return memory in MB and lags in ms."""
    with built_in_rig(fetch_jars(NEWEST), folder) as rig:
        rig.client.close()
        port, http_port = free_ports(2)
        settings = {
            "bootstrap.servers": rig.broker.bootstrap,
            "share.coordinator.state.topic.name": TOPIC,
            "share.coordinator.state.topic.replication.factor": "1",
            "share.coordinator.state.topic.min.isr": "1",
        }
        serve = CoordinatorProcess(folder, port=port, http_port=http_port, log="kafka", settings=settings)
        named = {"share.coordinator.state.topic.name": TOPIC}
        observer = ObserverProcess(folder, rig.broker.bootstrap, named)
        try:
            serve.start()
            sent = added_frames(share_partitions, "held")
            errors = drive_frames(
                "127.0.0.1", port, [ClientRequests([], sent)], 600.0, answers_max=len(sent)
            ).errors
            # Both load their state from the topic, as after a restart.
            serve.stop()
            serve.start()
            observer.start()
            found = {
                "errors": errors,
                "serve_mb": resident_bytes(serve.process.pid) / 1e6,
                "observe_mb": resident_bytes(observer.process.pid) / 1e6,
            }
            lags = sorted(asyncio.run(_measure_lags(serve.port, observer.http_port)))
            return found | {"lag_p50_ms": statistics.median(lags) * 1000, "lag_max_ms": lags[-1] * 1000}
        finally:
            observer.kill()
            serve.kill()


async def _measure_lags(port: int, http_port: int) -> list[float]:
    """Write, and return how long after each response the observer's API shows the write."""
    lags = []
    retry = RetryPolicy(attempts_max=10, first_s=0.1)
    async with ShareCoordinatorClient(f"127.0.0.1:{port}", retry=retry) as client:
        await client.initialize(_KEY, state_epoch=1, start_offset=0)
        for number in range(1, WRITES + 1):
            await client.write(_KEY, state_epoch=1, leader_epoch=number, start_offset=number, batches=[])
            lags.append(await asyncio.to_thread(_wait_until_shown, http_port, number, time.monotonic()))
    return lags


def _wait_until_shown(http_port: int, start_offset: int, began_s: float) -> float:
    path = f"/api/v1/share-partition?{urlencode(_PART)}"
    connection = http.client.HTTPConnection("127.0.0.1", http_port, timeout=60)

    shown = -1
    while shown < start_offset:
        assert time.monotonic() < began_s + _SHOWN_WITHIN_S, "the observer does not show the write"
        connection.request("GET", path)
        response = connection.getresponse()
        body = response.read()
        shown = json.loads(body)["start_offset"] if response.status == 200 else -1
    connection.close()
    return time.monotonic() - began_s


def measure_history(folder: Path, share_partitions: int, sync: str) -> dict[str, Any]:
    """Return the latency of other writes, in turn at rest and while histories are read."""
    with coordinator_process(folder, {"journal.sync": sync}) as process:
        sent = added_frames(share_partitions, "held")
        drive_frames("127.0.0.1", process.port, [ClientRequests([], sent)], 600.0, answers_max=len(sent))
        measure_other_requests(process, None, SECONDS)
        at_rest: list[LoadFigures] = []
        while_read: list[LoadFigures] = []
        reading_s: list[float] = []
        for _ in range(ROUNDS):
            at_rest += measure_other_requests(process, None, SECONDS)
            stopped = threading.Event()
            thread = threading.Thread(target=_read_histories, args=(process, stopped, reading_s))
            thread.start()
            while_read += measure_other_requests(process, None, SECONDS)
            stopped.set()
            thread.join()
        log_mb = sum(path.stat().st_size for path in process.data.iterdir()) / 1e6
    return {
        "journal_mb": log_mb,
        "at_rest": latency_tails(at_rest),
        "while_histories_are_read": latency_tails(while_read),
        "histories": len(reading_s),
        "history_s": statistics.median(reading_s),
    }


def _read_histories(process: CoordinatorProcess, stopped: threading.Event, reading_s: list[float]) -> None:
    key = {"group": "held-000000", "topic": topic_id_text(TOPIC_IDS[0]), "partition": 0}
    while not stopped.is_set():
        began_s = time.monotonic()
        status, body = process.get(f"/api/v1/delivery-history?{urlencode(key)}")
        assert status == 200, body
        reading_s.append(time.monotonic() - began_s)


def main() -> int:
    """Measure and print the figures as JSON."""
    parser = argparse.ArgumentParser(prog="tests.benchmarks.observing", description=__doc__)
    parser.add_argument("what", choices=("observer", "history"))
    parser.add_argument("--share-partitions", type=int, default=100 * GROUP_PARTITIONS)
    parser.add_argument("--sync", choices=("os", "always"), default="always")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="share-coordinator-bench-") as name:
        folder = Path(name)
        if options.what == "observer":
            found = measure_observer(folder, options.share_partitions)
        else:
            found = measure_history(folder, options.share_partitions, options.sync)
    wide_console().print_json(json.dumps({"machine": Machine().properties()} | found))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
