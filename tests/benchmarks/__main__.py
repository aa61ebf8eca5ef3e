"""`make bench`: WriteShareGroupState against ours, and against Kafka's own coordinator where Java is there.

All sides are driven in turn, round by round, on the same machine; the table has the median of the rounds.
Kafka acknowledges from the page cache, which is what ours does with journal.sync=os. With `--log kafka` ours
keeps its state in a topic of the cluster that it is compared with, and reads are measured too: each asks a
broker.
"""

import argparse
import json
import os
import platform
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from rich.console import Console
from rich.progress import Progress
from rich.table import Column, Table

from tests.benchmarks.frames import Load
from tests.benchmarks.kafka_log import KafkaSides, kafka_sides
from tests.benchmarks.load import generator, measure
from tests.benchmarks.side import Side
from tests.kafka.built_in import ready_coordinator
from tests.kafka.coordinator import CoordinatorProcess
from tests.kafka.jars import RELEASES, fetch_jars
from tests.kafka.ports import free_ports
from tests.kafka.rig import built_in_rig
from tests.kafka.toolchain import how_to_get, missing_programs

LOADS = (Load(1, 1, 4), Load(8, 1, 4), Load(64, 1, 4), Load(8, 10, 4), Load(8, 50, 4), Load(8, 50, 20))
KAFKA_LOG_LOADS = (*LOADS, *(Load(n, 1, 4, rpc) for rpc in ("read", "summary") for n in (1, 8, 64)))
BROKERS = (1, 3)
NEWEST = RELEASES[-1]
PARTITIONS = 50
TOPIC_ID = bytes(range(16))


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


def table_of(sides: list[Side], loads: Sequence[Load]) -> Table:
    """Lay the medians out, a line for each load, with the ratio to Kafka where it was measured."""
    table = Table(Column("connections x partitions x batches", no_wrap=True), box=None)
    for side in sides:
        table.add_column(f"{side.name}\nRPC/s  p50/p99/p99.9/max µs", justify="right", no_wrap=True)
    theirs = {side.beside: side for side in sides if side.is_kafka}
    for load in loads:
        cells = []
        for side in sides:
            figures = side.median(load)
            cell = f"{figures.requests_per_second:,.0f}  " + "/".join(f"{us:,.0f}" for us in figures[1:5])
            if side.beside in theirs and not side.is_kafka:
                ratio = figures.requests_per_second / theirs[side.beside].median(load).requests_per_second
                cell += f"  (x{ratio:.1f})"
            if figures.errors:
                cell += f"  {figures.errors} ERRORS"
            cells.append(cell)
        table.add_row(str(load), *cells)
    return table


def sides_of(stack: ExitStack, folder: Path, log: str) -> tuple[list[Side], list[KafkaSides]]:
    """Start what is to be measured; it ends with the stack."""
    if log == "kafka":
        pairs = [
            stack.enter_context(kafka_sides(folder / f"brokers-{brokers}", brokers)) for brokers in BROKERS
        ]
        return [side for pair in pairs for side in pair.sides], pairs
    sides = [stack.enter_context(ours(folder / sync, sync)) for sync in ("always", "os")]
    if not missing_programs():
        sides.append(stack.enter_context(kafka(folder / "kafka")))
    return sides, []


def measure_all(sides: list[Side], loads: Sequence[Load], rounds: int, seconds: float) -> None:
    """Drive all sides with each load in turn, round by round."""
    with Progress(console=Console(stderr=True), transient=True) as progress:
        work = progress.add_task("measuring", total=rounds * len(loads) * len(sides))
        for _ in range(rounds):
            for load in loads:
                for side in sides:
                    progress.update(work, description=f"{side.name}, {load}")
                    side.add(load, measure(side.host, side.port, side.topic_id, load, seconds))
                    progress.advance(work)


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="make bench", description=__doc__)
    parser.add_argument(
        "--log", choices=("journal", "kafka"), default="journal", help="where ours keeps state"
    )
    parser.add_argument("--seconds", type=float, default=3.0, help="of each load in each round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("-o", "--output", choices=("table", "json"), default="table")
    options = parser.parse_args()
    # What reads it may be no terminal; a line of the table is a line all the same.
    console = Console(width=max(Console().width, 150))
    missing = missing_programs()
    if missing and options.log == "kafka":
        console.print(f"nothing to measure: {how_to_get(missing)}")
        return 1
    loads = KAFKA_LOG_LOADS if options.log == "kafka" else LOADS
    with tempfile.TemporaryDirectory(prefix="share-coordinator-bench-") as name, ExitStack() as stack:
        sides, pairs = sides_of(stack, Path(name), options.log)
        measure_all(sides, loads, options.rounds, options.seconds)
        loadings = [pair.load_again() for pair in pairs]
    if options.output == "json":
        print(
            json.dumps(
                {side.name: {str(load): side.median(load)._asdict() for load in loads} for side in sides}
            )
        )
        return 0
    console.print(
        f"{platform.machine()}, {os.cpu_count()} CPUs, Python {platform.python_version()}, "
        f"{options.rounds} rounds of {options.seconds:g} s, the load generator on the same machine"
        + ("" if generator() else ", in Python, for want of a C compiler: it bounds the figures")
    )
    console.print(table_of(sides, loads))
    for loading in loadings:
        console.print(
            f"started again, ours with {loading.name} claimed all shards and loaded {loading.records:,} "
            f"records in {loading.seconds:.2f} s ({loading.records / loading.seconds:,.0f} records/s)"
        )
    if missing:
        console.print(f"without Kafka's own coordinator: {how_to_get(missing)}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
