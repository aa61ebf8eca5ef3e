"""Measure the recovery jobs, locally and with Spark: `python -m tests.benchmarks.recovery`.

`state_logs` generates the log once for each size, in a directory that later runs use again.  CPU seconds are
the sum over all processes, so they remain comparable on a machine with other load.  The figures with a limit
need a broker (Java, Maven).
"""

import argparse
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.table import Table

from coordinator.recovery.compaction import DAY_MS
from coordinator.recovery.engines import Engine, LocalEngine, open_engine
from coordinator.recovery.rebuild import rebuild
from coordinator.recovery.sources.archive import ArchiveSource
from coordinator.recovery.sources.base import LogCut
from coordinator.recovery.sources.segments import SegmentSource
from tests.benchmarks.archives import (
    BEGAN_MS,
    DAYS,
    measure_bytes_read,
    measure_planning_of_a_year,
    sum_file_sizes,
    write_archive_of_a_year,
    write_commits_of_a_year,
)
from tests.benchmarks.machine import cpu_seconds
from tests.benchmarks.recovery_topic import measure_audit
from tests.benchmarks.state_logs import write_log


class RebuildFigures(NamedTuple):
    """The result of one rebuild."""

    records: int
    wall_s: float
    cpu_s: float


def measure_rebuild(engine: Engine, source: SegmentSource) -> RebuildFigures:
    """Rebuild the state once and return the figures."""
    began_s, cpu_s = time.perf_counter(), cpu_seconds()
    run = rebuild(engine, source)
    wall_s = time.perf_counter() - began_s
    return RebuildFigures(run.manifest["totals"]["records"], wall_s, cpu_seconds() - cpu_s)


@contextmanager
def generate_log(folder: Path | None, records: int, hot_fraction: float) -> Iterator[Path]:
    """Yield the directory of a log of `records`; generate the log if the directory has none of that size."""
    is_temporary = folder is None
    folder = Path(tempfile.mkdtemp(prefix="share-coordinator-bench-")) if folder is None else folder
    named = folder / f"{records}-{hot_fraction:g}"
    try:
        if not named.exists():
            unfinished = folder / f"{named.name}.unfinished"
            shutil.rmtree(unfinished, ignore_errors=True)
            write_log(
                unfinished,
                records=records,
                share_partitions=min(100_000, records // 10),
                hot_fraction=hot_fraction,
            )
            unfinished.rename(named)
        yield named
    finally:
        if is_temporary:
            shutil.rmtree(folder)


class Target(NamedTuple):
    """A measured figure that has a limit: its name, the limit and the value, as texts."""

    what: str
    limit: str
    found: str


def measure_rebuild_of_yesterday(folder: Path) -> Target:
    """Rebuild the state as of the last day but one, from an archive of a year."""
    source = ArchiveSource(str(write_archive_of_a_year(folder)))
    cut = LogCut(time_ms=BEGAN_MS + (DAYS - 1) * DAY_MS)
    rebuild(LocalEngine(1), source, cut=cut)
    began_s = time.perf_counter()
    used = measure_bytes_read(lambda: rebuild(LocalEngine(1), source, cut=cut))
    wall_s = time.perf_counter() - began_s
    part = used / sum_file_sizes(Path(source.folder))
    return Target(
        "yesterday's state from an archive of a year", "2 %, seconds", f"{part:.1%}, {wall_s:.2f} s"
    )


def measure_driver_memory(share_partitions: int) -> Target:
    """Rebuild with Spark on a standalone cluster, in other processes."""
    command = [sys.executable, "-m", "tests.benchmarks.recovery_memory", "--jobs", "rebuild"]
    command += ["--share-partitions", str(share_partitions)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    figures = json.loads(done.stdout)
    peak_mib = figures["python_peak_mib"] + figures["jvm_peak_mib"]
    return Target(
        f"driver, rebuild of {share_partitions:,} share-partitions", "1,024 MiB", f"{peak_mib:,} MiB"
    )


def measure_targets(options: argparse.Namespace, folder: Path, log: Path, spark: Engine) -> Iterator[Target]:
    """Yield the figures that have a limit."""
    commits = folder / "commits-only"
    write_commits_of_a_year(commits)
    # Measure in a new process, because the peak memory of this process includes earlier measurements.
    with ProcessPoolExecutor(1, get_context("spawn")) as process:
        planned = process.submit(measure_planning_of_a_year, commits).result()
    yield Target(
        f"plan an archive of {planned.commits:,} commits",
        "5 s, 300 MiB",
        f"{planned.cpu_s:.2f} CPU s, {planned.peak_mib} MiB",
    )
    yield measure_rebuild_of_yesterday(folder / "year")
    (folder / "broker").mkdir()
    cost = measure_audit(spark, log, folder / "broker")
    yield Target(
        "audit of a live topic with Spark, additional time compared with reading it",
        "20 %",
        f"{cost.extra_time_ratio:.0%} ({cost.audit_s:.1f} s and {cost.read_s:.1f} s, "
        f"{cost.findings} findings)",
    )
    if options.share_partitions:
        yield measure_driver_memory(options.share_partitions)


def print_tables(
    options: argparse.Namespace, targets: Sequence[Target], rows: Mapping[str, Mapping[str, float]]
) -> None:
    """Print the figures as tables."""
    console = Console()
    table = Table("engine", "records/s", "records/CPU second", "seconds", box=None)
    for name, row in rows.items():
        table.add_row(
            name,
            f"{row['records_per_second']:,.0f}",
            f"{row['records_per_cpu_second']:,.0f}",
            f"{row['wall_s']:.2f}",
        )
    console.print(
        f"{platform.machine()}, {os.cpu_count()} CPUs, Python {platform.python_version()}, "
        f"{options.records:,} records, {options.hot:.0%} of them of one share-partition, "
        f"median of {options.rounds} rounds"
    )
    console.print(table)
    target_table = Table("figure", "at most", "measured", box=None)
    for target in targets:
        target_table.add_row(*target)
    console.print(target_table)


def main() -> int:
    """Measure all engines and all targets, and print tables."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.recovery", description=__doc__)
    parser.add_argument("--records", type=int, default=2_000_000)
    parser.add_argument(
        "--hot", type=float, default=0.0, help="part (0-1) of all records that one share-partition gets"
    )
    parser.add_argument("--rounds", type=int, default=3, help="measured rounds, after one round to warm up")
    parser.add_argument(
        "--share-partitions", type=int, default=100_000, help="for the memory of the driver; 0 for none"
    )
    parser.add_argument("--folder", type=Path, help="directory that keeps the log for later runs")
    parser.add_argument("-o", "--output", choices=("table", "json"), default="table")
    options = parser.parse_args()
    makers: dict[str, Callable[[], Engine]] = {
        "one process": lambda: LocalEngine(1),
        "local": LocalEngine,
        "spark": lambda: open_engine("spark", master=f"local[{os.cpu_count()}]"),
    }
    rows: dict[str, dict[str, float]] = {}
    with (
        generate_log(options.folder, options.records, options.hot) as log,
        tempfile.TemporaryDirectory(prefix="share-coordinator-bench-") as temporary,
    ):
        source, targets = SegmentSource(str(log)), []
        for name, make in makers.items():
            engine = make()
            for _ in range(2 if name == "spark" else 1):
                measure_rebuild(engine, source)
            runs = [measure_rebuild(engine, source) for _ in range(options.rounds)]
            rows[name] = {
                "records_per_second": statistics.median(run.records / run.wall_s for run in runs),
                "records_per_cpu_second": statistics.median(run.records / run.cpu_s for run in runs),
                "wall_s": statistics.median(run.wall_s for run in runs),
            }
            if name == "spark":
                targets = list(measure_targets(options, Path(temporary), log, engine))
            engine.close()
    if options.output == "json":
        print(json.dumps({**rows, "targets": [target._asdict() for target in targets]}))
    else:
        print_tables(options, targets, rows)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
