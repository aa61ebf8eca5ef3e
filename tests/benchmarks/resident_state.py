"""Measure a coordinator that stores many share-partitions: `make bench-held`.

It measures the memory of an idle process, the time of a restart with a compacted journal, and the memory of
each share-partition. It also measures the latency of other requests while a thread adds the same number of
share-partitions again.
"""

import argparse
import json
import statistics
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from rich.table import Table

from tests.benchmarks.frames import ClientRequests, Frame, initialize_frame
from tests.benchmarks.load import LoadFigures, drive_frames, measure_workload
from tests.benchmarks.loads import WriteLoad, write_frame
from tests.benchmarks.machine import Machine, resident_bytes
from tests.benchmarks.many_states import BATCHES, GROUP_PARTITIONS, write_journal
from tests.benchmarks.report import wide_console
from tests.benchmarks.start_systems import TOPIC_IDS, coordinator_process
from tests.kafka.coordinator import CoordinatorProcess

IDLE_MB_MAX = 100
SHARE_PARTITION_BYTES_MAX = 300
SERVED_S_MAX = 5.0
P999_MS_MAX = 5.0

_OTHERS = WriteLoad(8, 1, 4)
_ADDED = WriteLoad(1, GROUP_PARTITIONS, BATCHES)


def make_frames_that_add_states(share_partitions: int, prefix: str) -> list[Frame]:
    """Return frames that initialize share-partitions and write three state batches to each."""
    frames = []
    for number in range(share_partitions // GROUP_PARTITIONS):
        group = f"{prefix}-{number:06d}"
        frames.append(initialize_frame(group, TOPIC_IDS[0], range(GROUP_PARTITIONS)))
        frames.append(write_frame(_ADDED, TOPIC_IDS[0], 0, group))
    return frames


def measure_other_requests(
    process: CoordinatorProcess, running: threading.Thread | None, seconds: float
) -> list[LoadFigures]:
    """Measure requests in slices of 2 s, while the thread `running` runs, or for some seconds."""
    slices = []
    until_s = time.monotonic() + seconds
    while running.is_alive() if running is not None else time.monotonic() < until_s:
        slices.append(measure_workload("127.0.0.1", process.port, TOPIC_IDS, _OTHERS, 2.0))
    return slices


def summarize_latencies(slices: list[LoadFigures]) -> dict[str, float]:
    """Return the median and the maximum of the p99.9 of all slices, and the maximum latency, in ms."""
    return {
        "p999_ms": statistics.median(figures.p999_us for figures in slices) / 1000,
        "p999_worst_ms": max(figures.p999_us for figures in slices) / 1000,
        "longest_ms": max(figures.max_us for figures in slices) / 1000,
        "requests_per_second": statistics.median(figures.requests_per_second for figures in slices),
        "requests_per_second_min": min(figures.requests_per_second for figures in slices),
    }


def run_measurements(folder: Path, share_partitions: int, added: int, sync: str) -> dict[str, Any]:
    """Run all measurements with one journal."""
    with coordinator_process(folder / "idle", {}) as idle:
        figures: dict[str, Any] = {"idle_mb": resident_bytes(idle.process.pid) / 1e6}
        idle_bytes = resident_bytes(idle.process.pid)
    held = folder / "held"
    held.mkdir()
    write_journal(held / "journal", share_partitions, TOPIC_IDS[0], "held")
    began_s = time.monotonic()
    with coordinator_process(held, {"journal.sync": sync}) as process:
        figures["served_after_s"] = time.monotonic() - began_s
        pid = process.process.pid
        figures["bytes_each"] = (resident_bytes(pid) - idle_bytes) / share_partitions
        figures["resident_mb"] = resident_bytes(pid) / 1e6
        figures["at_rest"] = summarize_latencies(measure_other_requests(process, None, 6.0))
        adding: list[LoadFigures] = []
        frames = make_frames_that_add_states(added, "added")

        def add_states() -> None:
            answers = len(frames)
            client = ClientRequests([], frames)
            adding.append(drive_frames("127.0.0.1", process.port, [client], 600.0, answers_max=answers))

        thread = threading.Thread(target=add_states)
        began_s = time.monotonic()
        thread.start()
        figures["while_added"] = summarize_latencies(measure_other_requests(process, thread, 0.0))
        thread.join()
        figures["added_in_s"] = time.monotonic() - began_s
        figures["errors"] = adding[0].errors
        figures["bytes_each_with_added"] = (resident_bytes(pid) - idle_bytes) / (share_partitions + added)
    return figures


def main() -> int:
    """Measure the coordinator and print a table."""
    parser = argparse.ArgumentParser(prog="make bench-held", description=__doc__)
    parser.add_argument("--share-partitions", type=int, default=1_000_000)
    parser.add_argument("--added", type=int, default=1_000_000)
    parser.add_argument("--sync", choices=("os", "always"), default="os")
    parser.add_argument("-o", "--output", choices=("table", "json"), default="table")
    options = parser.parse_args()
    machine = Machine()
    with tempfile.TemporaryDirectory(prefix="share-coordinator-bench-") as name:
        figures = run_measurements(Path(name), options.share_partitions, options.added, options.sync)
    if options.output == "json":
        print(json.dumps({"machine": machine.properties()} | figures))
        return 0
    console = wide_console()
    for line in machine.lines():
        console.print(line, highlight=False)
    held = f"{options.share_partitions:,} share-partitions with {BATCHES} state batches each"
    console.print(f"{held}, journal.sync={options.sync}")
    console.print(results_table(figures, options.added))
    return 0


def results_table(figures: dict[str, Any], added: int) -> Table:
    """Return a table of the figures and their targets."""
    table = Table("", "measured", "aim", "met", box=None)
    rest, busy = figures["at_rest"], figures["while_added"]
    rows = (
        ("idle process, MB resident", figures["idle_mb"], IDLE_MB_MAX, ".0f"),
        (
            "seconds from process start until all shards are served",
            figures["served_after_s"],
            SERVED_S_MAX,
            ".1f",
        ),
        ("bytes resident for each share-partition", figures["bytes_each"], SHARE_PARTITION_BYTES_MAX, ".0f"),
        (f"p99.9 of other requests while {added:,} are added, ms", busy["p999_ms"], P999_MS_MAX, ".2f"),
    )
    for what, measured, aim, number_format in rows:
        table.add_row(what, format(measured, number_format), f"≤ {aim}", "yes" if measured <= aim else "NO")
    table.add_row("  p99.9 of the worst 2 s, ms", f"{busy['p999_worst_ms']:.2f}")
    table.add_row("  maximum latency, ms", f"{busy['longest_ms']:.1f}")
    table.add_row("  other requests/s meanwhile", f"{busy['requests_per_second']:,.0f}")
    table.add_row("  other requests/s in the slowest 2 s", f"{busy['requests_per_second_min']:,.0f}")
    table.add_row("  seconds to add all", f"{figures['added_in_s']:.1f}")
    table.add_row("p99.9 at rest, ms", f"{rest['p999_ms']:.2f}")
    table.add_row("  maximum latency, ms", f"{rest['longest_ms']:.1f}")
    table.add_row("  requests/s", f"{rest['requests_per_second']:,.0f}")
    table.add_row("bytes resident for each, with the added", f"{figures['bytes_each_with_added']:.0f}")
    return table


if __name__ == "__main__":
    raise SystemExit(main())
