"""Measure the journal alone, without a network: `python -m tests.benchmarks.journal`.

Each writer appends one record to its own state partition, and the next record when the first is durable.
The shards append in the same closed loop.  Then the journal is reopened and read completely.
"""

import argparse
import asyncio
import os
import platform
import shutil
import statistics
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import uvloop
from rich.console import Console
from rich.table import Table

from coordinator.errors import LogError
from coordinator.log.journal import Journal

STATE_PARTITIONS = 64
SEGMENT_BYTES = 64 << 20
# The key and value sizes of a typical ShareUpdate record with two state batches.
RECORD = (bytes(48), bytes(60))


class AppendLatencies(NamedTuple):
    """The latencies of a closed loop of writers in microseconds; `call_us` is the time in append()."""

    per_second: float
    p50_us: float
    p99_us: float
    call_us: float


class OpeningTime(NamedTuple):
    """The number of records of a reopened journal, and the seconds to open and to read it."""

    records: int
    open_s: float
    read_s: float


async def measure_appends(folder: Path, sync: str, writers: int, seconds: float) -> AppendLatencies:
    """Append with this number of writers for `seconds`, and return the latencies."""
    assert sync in ("always", "os")
    journal = Journal(folder, state_partitions=STATE_PARTITIONS, segment_bytes=SEGMENT_BYTES, sync=sync)
    await journal.open()
    latencies_s: list[float] = []
    calls_s = 0.0
    clock = time.perf_counter
    began_s = clock()
    end_s = began_s + seconds
    running = writers
    finished = asyncio.Event()

    def start_append(state_partition: int) -> None:
        nonlocal calls_s
        asked_s = clock()

        def on_append_done(base_offset: int, error: LogError | None) -> None:
            nonlocal running
            if error is not None:
                raise error
            now_s = clock()
            latencies_s.append(now_s - asked_s)
            if now_s < end_s:
                start_append(state_partition)
            else:
                running -= 1
                if not running:
                    finished.set()

        journal.append(state_partition, [RECORD], 1, on_append_done)
        calls_s += clock() - asked_s

    for state_partition in range(writers):
        start_append(state_partition)
    await finished.wait()
    took_s = clock() - began_s
    await journal.close()
    percentiles = statistics.quantiles(latencies_s, n=100)
    count = len(latencies_s)
    return AppendLatencies(
        count / took_s, percentiles[49] * 1e6, percentiles[98] * 1e6, calls_s / count * 1e6
    )


async def measure_reopening(folder: Path) -> OpeningTime:
    """Open an existing journal and read all its records."""
    journal = Journal(folder, state_partitions=STATE_PARTITIONS, segment_bytes=SEGMENT_BYTES, sync="always")
    began_s = time.perf_counter()
    await journal.open()
    opened_s = time.perf_counter()
    batches = 0
    async for chunk in journal.read(range(STATE_PARTITIONS)):
        batches += len(chunk)
    read_s = time.perf_counter()
    await journal.close()
    return OpeningTime(batches, opened_s - began_s, read_s - opened_s)


def main() -> int:
    """Measure each setting and print a table."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.journal", description=__doc__)
    parser.add_argument("--seconds", type=float, default=2.0, help="duration of each load in each round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", type=Path, help="directory for the journals, on the disk to measure")
    options = parser.parse_args()
    loads = [(sync, writers) for sync in ("always", "os") for writers in (1, 8, 64)]
    rounds: dict[tuple[str, int], list[AppendLatencies]] = {load: [] for load in loads}
    openings: list[OpeningTime] = []
    for _ in range(options.rounds):
        for sync, writers in loads:
            folder = Path(tempfile.mkdtemp(prefix="journal-bench-", dir=options.folder))
            try:
                rounds[sync, writers].append(
                    uvloop.run(measure_appends(folder, sync, writers, options.seconds))
                )
                if (sync, writers) == ("os", 64):
                    openings.append(uvloop.run(measure_reopening(folder)))
            finally:
                shutil.rmtree(folder)
    table = Table("sync", "writers", "appends/s", "p50/p99 µs", "append() µs", box=None)
    for (sync, writers), figures in rounds.items():
        median = AppendLatencies(*(statistics.median(column) for column in zip(*figures, strict=True)))
        table.add_row(
            sync,
            str(writers),
            f"{median.per_second:,.0f}",
            f"{median.p50_us:,.0f}/{median.p99_us:,.0f}",
            f"{median.call_us:.1f}",
        )
    console = Console()
    console.print(
        f"{platform.machine()}, {os.cpu_count()} CPUs, Python {platform.python_version()}, "
        f"{options.rounds} rounds of {options.seconds:g} s"
    )
    console.print(table)
    for records, open_s, read_s in openings[:1]:
        console.print(
            f"opened {records:,} records in {open_s:.2f} s, read them in {read_s:.2f} s "
            f"({records / (open_s + read_s):,.0f} records/s)"
        )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
