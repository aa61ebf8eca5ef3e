"""Measure how the cost of requests grows with their size, as tables and plots: `make bench-plots`.

The benchmark varies one quantity at a time: connections, share-partitions per request, or state batches of
each share-partition. The benchmark drives all systems in turn. The number of stored share-partitions is
varied for this coordinator alone, with a separate journal for each number. `--draw` plots the stored figures
again.
"""

import argparse
import json
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress
from rich.table import Column, Table

from tests.benchmarks.load import measure_workload
from tests.benchmarks.loads import WriteLoad
from tests.benchmarks.machine import Machine, resident_bytes
from tests.benchmarks.many_states import write_journal
from tests.benchmarks.plots import write_plots
from tests.benchmarks.report import wide_console
from tests.benchmarks.spread import compute_spread
from tests.benchmarks.start_systems import TOPIC_IDS, coordinator_process, start_coordinator, start_kafka
from tests.benchmarks.system_under_test import SystemUnderTest
from tests.kafka.jars import REPOSITORY
from tests.kafka.toolchain import missing_programs

# The varied field of `WriteLoad`, and the loads with its values.
SWEEPS = {
    "connections": [WriteLoad(n, 1, 4) for n in (1, 2, 4, 8, 16, 32, 64, 128, 256)],
    "partitions": [WriteLoad(8, n, 4) for n in (1, 2, 5, 10, 20, 50, 100, 200)],
    "batches": [WriteLoad(8, 10, n) for n in (1, 2, 5, 10, 20, 50, 100)],
}
HELD = (1_000, 10_000, 100_000, 1_000_000)
_HELD_LOAD = WriteLoad(8, 10, 4)
_WARM_UP_S = 5.0
FOLDER = REPOSITORY / "docs" / "benchmarks"


def measure_sweeps(sides: list[SystemUnderTest], rounds: int, seconds: float) -> dict[str, Any]:
    """Drive all systems with all loads in turn; return medians by varied quantity, system and size."""
    with Progress(console=Console(stderr=True), transient=True) as progress:
        count = sum(map(len, SWEEPS.values()))
        work = progress.add_task("warming up", total=rounds * count * len(sides))
        for side in sides:
            side.drive(WriteLoad(8, 50, 4), _WARM_UP_S)
        for _ in range(rounds):
            for loads in SWEEPS.values():
                for load in loads:
                    for side in sides:
                        progress.update(work, description=f"{side.name}, {load}")
                        side.add(load, side.drive(load, seconds))
                        progress.advance(work)
    return {
        name: {
            side.name: [{"size": getattr(load, name)} | side.median(load)._asdict() for load in loads]
            for side in sides
        }
        for name, loads in SWEEPS.items()
    }


def measure_stored_state(
    folder: Path, share_partitions: int, rounds: int, seconds: float
) -> dict[str, float]:
    """Start with a journal of `share_partitions`; return the start time and the figures of a load."""
    own = folder / f"held-{share_partitions}"
    own.mkdir()
    write_journal(own / "journal", share_partitions, TOPIC_IDS[0], "held")
    began_s = time.monotonic()
    with coordinator_process(own, {"journal.sync": "os"}) as process:
        served_s = time.monotonic() - began_s
        resident_mb = resident_bytes(process.process.pid) / 1e6
        driven = [
            measure_workload("127.0.0.1", process.port, TOPIC_IDS, _HELD_LOAD, seconds)
            for _ in range(rounds + 1)
        ][1:]
    return {
        "size": share_partitions,
        "served_after_s": served_s,
        "resident_mb": resident_mb,
        "requests_per_second": compute_spread([figures.requests_per_second for figures in driven]).median,
        "p50_us": compute_spread([figures.p50_us for figures in driven]).median,
        "p99_us": compute_spread([figures.p99_us for figures in driven]).median,
    }


def main() -> int:
    """Measure, print tables, and write plots."""
    parser = argparse.ArgumentParser(prog="make bench-plots", description=__doc__)
    parser.add_argument("--seconds", type=float, default=1.0, help="duration of each load in each round")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument(
        "--folder", type=Path, default=FOLDER, help="directory for the plots and their figures"
    )
    parser.add_argument(
        "--draw", action="store_true", help="plot the stored figures again, without measuring"
    )
    options = parser.parse_args()
    options.folder.mkdir(exist_ok=True)
    figures = options.folder / "scaling.json"
    if not options.draw:
        figures.write_text(json.dumps(_measure_all(options.rounds, options.seconds), indent=1) + "\n")
    found = json.loads(figures.read_text())
    console = wide_console()
    for line in found["machine"]:
        console.print(line, highlight=False)
    for table in make_tables(found):
        console.print(table)
    for path in write_plots(found, options.folder):
        console.print(f"wrote {path}", highlight=False)
    return 0


def _measure_all(rounds: int, seconds: float) -> dict[str, Any]:
    machine = Machine()
    with tempfile.TemporaryDirectory(prefix="share-coordinator-bench-") as name:
        folder = Path(name)
        with ExitStack() as stack:
            sides = [stack.enter_context(start_coordinator(folder / sync, sync)) for sync in ("os", "always")]
            if not missing_programs():
                sides.append(stack.enter_context(start_kafka(folder / "kafka")))
            sweeps = measure_sweeps(sides, rounds, seconds)
        held = [measure_stored_state(folder, size, rounds, seconds) for size in HELD]
    return {"machine": machine.lines(), "sweeps": sweeps, "held": held}


def make_tables(found: dict[str, Any]) -> list[Table]:
    """Return a table for each varied quantity."""
    made = []
    for name, sides in found["sweeps"].items():
        table = Table(
            Column(name, justify="right"), box=None, title=f"\n{_FIXED[name]}", title_justify="left"
        )
        for side in sides:
            table.add_column(f"{side}\nRPC/s  p50/p99 µs", justify="right", no_wrap=True)
        for rows in zip(*sides.values(), strict=True):
            table.add_row(str(rows[0]["size"]), *map(_format_cell, rows))
        made.append(table)
    held = Table(
        *(
            Column(name, justify="right")
            for name in ("held", "RPC/s  p50/p99 µs", "MB resident", "served after s")
        ),
        box=None,
        title="\nstored share-partitions; 8 connections, 10 share-partitions a request, 4 batches each",
        title_justify="left",
    )
    for row in found["held"]:
        sizes = (f"{row['resident_mb']:,.0f}", f"{row['served_after_s']:.1f}")
        held.add_row(f"{row['size']:,}", _format_cell(row), *sizes)
    return [*made, held]


_FIXED = {
    "connections": "1 share-partition, 4 batches",
    "partitions": "8 connections, 4 batches",
    "batches": "8 connections, 10 share-partitions",
}


def _format_cell(row: dict[str, float]) -> str:
    return f"{row['requests_per_second']:,.0f}  {row['p50_us']:,.0f}/{row['p99_us']:,.0f}"


if __name__ == "__main__":
    raise SystemExit(main())
