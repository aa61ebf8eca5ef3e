"""`make bench`: WriteShareGroupState against ours, and against Kafka's own coordinator where Java is there.

All sides are driven in turn, round by round, on the same machine; the table has the median of the rounds.
Kafka acknowledges from the page cache, which is what ours does with journal.sync=os.
"""

import argparse
import json
import os
import platform
import statistics
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from tests.benchmarks.load import Figures, Load, measure
from tests.kafka.built_in import ready_coordinator
from tests.kafka.coordinator import CoordinatorProcess
from tests.kafka.jars import RELEASES, fetch_jars
from tests.kafka.ports import free_ports
from tests.kafka.rig import built_in_rig
from tests.kafka.toolchain import how_to_get, missing_programs

LOADS = (Load(1, 1, 4), Load(8, 1, 4), Load(64, 1, 4), Load(8, 10, 4), Load(8, 50, 4), Load(8, 50, 20))
NEWEST = RELEASES[-1]
PARTITIONS = 50
TOPIC_ID = bytes(range(16))


class Side:
    """One coordinator that is measured."""

    def __init__(self, name: str, host: str, port: int, topic_id: bytes) -> None:
        self.name = name
        self.host = host
        self.port = port
        self.topic_id = topic_id
        self.rounds: dict[Load, list[Figures]] = {load: [] for load in LOADS}

    def median(self, load: Load) -> Figures:
        """Return the median of each figure over the rounds."""
        rounds = self.rounds[load]
        return Figures(
            statistics.median(figures.requests_per_second for figures in rounds),
            statistics.median(figures.p50_us for figures in rounds),
            statistics.median(figures.p99_us for figures in rounds),
            sum(figures.errors for figures in rounds),
        )


@contextmanager
def ours(folder: Path, sync: str) -> Iterator[Side]:
    """Run a coordinator of ours."""
    port, http_port = free_ports(2)
    folder.mkdir()
    process = CoordinatorProcess(folder, port=port, http_port=http_port, settings={"journal.sync": sync})
    process.start()
    try:
        yield Side(f"ours, sync={sync}", "127.0.0.1", port, TOPIC_ID)
    finally:
        process.stop()


@contextmanager
def kafka(folder: Path) -> Iterator[Side]:
    """Run a broker with its own coordinator."""
    folder.mkdir()
    with built_in_rig(fetch_jars(NEWEST), folder) as rig:
        ready = ready_coordinator(rig, topic="bench", partitions=PARTITIONS)
        yield Side(f"Kafka {NEWEST}", ready.host, ready.port, ready.topic_id)


def table_of(sides: list[Side]) -> Table:
    """Lay the medians out, a line for each load, with the ratio to Kafka where it was measured."""
    table = Table("connections x partitions x batches", box=None)
    for side in sides:
        table.add_column(f"{side.name}\nRPC/s  p50/p99 µs", justify="right")
    theirs = next((side for side in sides if side.name.startswith("Kafka")), None)
    for load in LOADS:
        cells = []
        for side in sides:
            figures = side.median(load)
            cell = f"{figures.requests_per_second:,.0f}  {figures.p50_us:,.0f}/{figures.p99_us:,.0f}"
            if theirs is not None and side is not theirs:
                ratio = figures.requests_per_second / theirs.median(load).requests_per_second
                cell += f"  (x{ratio:.1f})"
            if figures.errors:
                cell += f"  {figures.errors} ERRORS"
            cells.append(cell)
        table.add_row(str(load), *cells)
    return table


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="make bench", description=__doc__)
    parser.add_argument("--seconds", type=float, default=3.0, help="of each load in each round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("-o", "--output", choices=("table", "json"), default="table")
    options = parser.parse_args()
    console = Console()
    missing = missing_programs()
    with tempfile.TemporaryDirectory(prefix="share-coordinator-bench-") as name, ExitStack() as stack:
        folder = Path(name)
        sides = [stack.enter_context(ours(folder / sync, sync)) for sync in ("always", "os")]
        if not missing:
            sides.append(stack.enter_context(kafka(folder / "kafka")))
        with Progress(console=Console(stderr=True), transient=True) as progress:
            work = progress.add_task("measuring", total=options.rounds * len(LOADS) * len(sides))
            for _ in range(options.rounds):
                for load in LOADS:
                    for side in sides:
                        progress.update(work, description=f"{side.name}, {load}")
                        figures = measure(side.host, side.port, side.topic_id, load, options.seconds)
                        side.rounds[load].append(figures)
                        progress.advance(work)
    if options.output == "json":
        print(
            json.dumps(
                {side.name: {str(load): side.median(load)._asdict() for load in LOADS} for side in sides}
            )
        )
        return 0
    console.print(
        f"{platform.machine()}, {os.cpu_count()} CPUs, Python {platform.python_version()}, "
        f"{options.rounds} rounds of {options.seconds:g} s, the load generator on the same machine"
    )
    console.print(table_of(sides))
    if missing:
        console.print(f"without Kafka's own coordinator: {how_to_get(missing)}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
