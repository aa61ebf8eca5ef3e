"""Measure the rebuild of a state log, locally and with Spark: `python -m tests.benchmarks.recovery`.

First, the benchmark plans the read of an archive that covers a year.  `state_logs` generates the log once for
each size, in a directory that later runs use again.  CPU seconds are the sum over all processes, so they
remain comparable on a machine with other load.
"""

import argparse
import json
import os
import platform
import resource
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.table import Table

from coordinator.recovery.engines import Engine, LocalEngine, open_engine
from coordinator.recovery.rebuild import rebuild
from coordinator.recovery.sources.segments import SegmentSource
from tests.benchmarks.archives import PlanningCost, plan_a_year, write_commits_of_a_year
from tests.benchmarks.machine import cpu_seconds
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
def generate_log(folder: Path | None, records: int, hot_part: float) -> Iterator[Path]:
    """Yield the directory of a log of `records`; generate the log if the directory has none of that size."""
    own = folder is None
    folder = Path(tempfile.mkdtemp(prefix="share-coordinator-bench-")) if folder is None else folder
    named = folder / f"{records}-{hot_part:g}"
    try:
        if not named.exists():
            unfinished = folder / f"{named.name}.unfinished"
            shutil.rmtree(unfinished, ignore_errors=True)
            write_log(
                unfinished, records=records, share_partitions=min(100_000, records // 10), hot_part=hot_part
            )
            unfinished.rename(named)
        yield named
    finally:
        if own:
            shutil.rmtree(folder)


def print_table(
    options: argparse.Namespace, planned: PlanningCost, rows: Mapping[str, Mapping[str, float]]
) -> None:
    """Print the figures as a table."""
    console = Console()
    console.print(
        f"an archive of {planned.commits:,} commits is planned in {planned.cpu_s:.2f} CPU seconds; "
        f"peak memory {planned.peak_mib} MiB"
    )
    table = Table("engine", "records/s", "records/CPU second", "seconds", box=None)
    for name, row in rows.items():
        table.add_row(
            name,
            f"{row['records_per_second']:,.0f}",
            f"{row['records_per_cpu_second']:,.0f}",
            f"{row['wall_s']:.2f}",
        )
    peak_mib = (
        max(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
        // 1024
    )
    console.print(
        f"{platform.machine()}, {os.cpu_count()} CPUs, Python {platform.python_version()}, "
        f"{options.records:,} records, {options.hot:.0%} of them of one share-partition, "
        f"median of {options.rounds} rounds, largest process {peak_mib} MiB"
    )
    console.print(table)


def main() -> int:
    """Measure all engines and print a table."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.recovery", description=__doc__)
    parser.add_argument("--records", type=int, default=2_000_000)
    parser.add_argument(
        "--hot", type=float, default=0.0, help="part (0-1) of all records that one share-partition gets"
    )
    parser.add_argument("--rounds", type=int, default=3, help="measured rounds, after one round to warm up")
    parser.add_argument("--engines", default="alone,local,spark", help="alone is one process")
    parser.add_argument("--folder", type=Path, help="directory that keeps the log for later runs")
    parser.add_argument("-o", "--output", choices=("table", "json"), default="table")
    options = parser.parse_args()
    makers: dict[str, Callable[[], Engine]] = {
        "alone": lambda: LocalEngine(1),
        "local": LocalEngine,
        "spark": lambda: open_engine("spark", master=f"local[{os.cpu_count()}]"),
    }
    with tempfile.TemporaryDirectory(prefix="share-coordinator-bench-") as year:
        write_commits_of_a_year(Path(year))
        planned = plan_a_year(Path(year))
    found: dict[str, list[RebuildFigures]] = {}
    with generate_log(options.folder, options.records, options.hot) as folder:
        source = SegmentSource(str(folder))
        for name in options.engines.split(","):
            engine = makers[name]()
            for _ in range(2 if name == "spark" else 1):
                measure_rebuild(engine, source)
            found[name] = [measure_rebuild(engine, source) for _ in range(options.rounds)]
            engine.close()
    rows = {
        name: {
            "records_per_second": statistics.median(run.records / run.wall_s for run in runs),
            "records_per_cpu_second": statistics.median(run.records / run.cpu_s for run in runs),
            "wall_s": statistics.median(run.wall_s for run in runs),
        }
        for name, runs in found.items()
    }
    if options.output == "json":
        print(json.dumps({**rows, "plan": planned._asdict()}))
        return 0
    print_table(options, planned, rows)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
