"""`make bench`: WriteShareGroupState against ours, and against Kafka's own coordinator where Java is there.

All sides are driven in turn, round by round, on the same machine, after some seconds of load for each that
do not count: a JVM needs them.  The first table has the ratios of the rounds beside what is aimed at, the
second the medians behind them.  Kafka acknowledges from the page cache, which is what ours does with
journal.sync=os.
With `--log kafka` ours keeps its state in a topic of the cluster that it is compared with, and reads are
measured too: each asks a broker.
"""

import argparse
import json
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.progress import Progress

from tests.benchmarks.aims import LOADS
from tests.benchmarks.frames import Load
from tests.benchmarks.kafka_log import KafkaSides, Loading, kafka_sides
from tests.benchmarks.load import generator, measure
from tests.benchmarks.machine import Machine
from tests.benchmarks.report import LEGEND, as_json, figures_table, ratio_table, wide_console
from tests.benchmarks.side import Side
from tests.benchmarks.sides import echo, kafka, ours
from tests.kafka.toolchain import how_to_get, missing_programs

KAFKA_LOG_LOADS = (*LOADS, *(Load(n, 1, 4, rpc) for rpc in ("read", "summary") for n in (1, 8, 64)))
WARM_UP = (Load(8, 1, 4), Load(8, 50, 20))


class Plan(NamedTuple):
    """How long what is measured."""

    loads: Sequence[Load]
    rounds: int
    seconds: float
    warm_up_s: float

    def __str__(self) -> str:
        rounds = f"{self.rounds} rounds of {self.seconds:g} s"
        return f"{rounds} after {self.warm_up_s:g} s to warm up, the sides in turn"


def sides_of(
    stack: ExitStack, folder: Path, options: argparse.Namespace
) -> tuple[list[Side], list[KafkaSides]]:
    """Start what is to be measured; it ends with the stack."""
    if options.log == "kafka":
        pairs = [
            stack.enter_context(kafka_sides(folder / f"brokers-{brokers}", brokers))
            for brokers in options.brokers
        ]
        return [side for pair in pairs for side in pair.sides], pairs
    sides = [stack.enter_context(ours(folder / sync, sync)) for sync in ("os", "always")]
    if options.echo:
        sides.append(stack.enter_context(echo(folder)))
    if not missing_programs():
        sides.append(stack.enter_context(kafka(folder / "kafka")))
    return sides, []


def measure_all(sides: list[Side], plan: Plan) -> None:
    """Drive all sides with each load in turn, round by round."""
    with Progress(console=Console(stderr=True), transient=True) as progress:
        work = progress.add_task("measuring", total=(plan.rounds * len(plan.loads) + 1) * len(sides))
        for side in sides:
            progress.update(work, description=f"{side.name}, warming up")
            for load in WARM_UP:
                measure(side.host, side.port, side.topic_id, load, plan.warm_up_s / len(WARM_UP))
            progress.advance(work)
        for number in range(plan.rounds):
            for load in plan.loads:
                # Another one is first each time: none gains by its place.
                for side in sides[number % len(sides) :] + sides[: number % len(sides)]:
                    progress.update(work, description=f"{side.name}, {load}")
                    side.add(load, measure(side.host, side.port, side.topic_id, load, plan.seconds))
                    progress.advance(work)


def main() -> int:
    """Measure and print."""
    options = _options()
    console = wide_console()
    missing = missing_programs()
    if missing and options.log == "kafka":
        console.print(f"nothing to measure: {how_to_get(missing)}")
        return 1
    every = KAFKA_LOG_LOADS if options.log == "kafka" else LOADS
    loads = [load for load in every if not options.only or str(load) in options.only.split(",")]
    plan = Plan(loads, options.rounds, options.seconds, options.warm_up)
    machine = Machine()
    with tempfile.TemporaryDirectory(prefix="share-coordinator-bench-") as name, ExitStack() as stack:
        sides, pairs = sides_of(stack, Path(name), options)
        measure_all(sides, plan)
        loadings = [pair.load_again() for pair in pairs]
    if options.output == "json":
        facts = {"machine": machine.facts(), "plan": plan._asdict() | {"loads": list(map(str, loads))}}
        print(json.dumps(facts | as_json(sides) | {"loadings": [each._asdict() for each in loadings]}))
    else:
        _print(console, machine, plan, sides, loadings)
        if missing:
            console.print(f"without Kafka's own coordinator: {how_to_get(missing)}")
    return 0


def _print(
    console: Console, machine: Machine, plan: Plan, sides: list[Side], loadings: Sequence[Loading]
) -> None:
    for line in machine.lines():
        console.print(line, highlight=False)
    console.print(
        f"{plan}; the load generator on the same machine"
        + ("" if generator() else ", in Python, for want of a C compiler: it bounds the figures")
    )
    for side in sides:
        if side.settings:
            console.print(f"{side.name}: {side.settings}", highlight=False)
    console.print(f"rows: {LEGEND}\n")
    ratios = ratio_table(sides)
    if ratios is not None:
        console.print(ratios)
        console.print()
    console.print(figures_table(sides, plan.loads))
    for loading in loadings:
        console.print(
            f"started again, ours with {loading.name} claimed all shards and loaded {loading.records:,} "
            f"records in {loading.seconds:.2f} s ({loading.records / loading.seconds:,.0f} records/s)"
        )


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make bench", description=__doc__)
    parser.add_argument(
        "--log", choices=("journal", "kafka"), default="journal", help="where ours keeps state"
    )
    parser.add_argument("--seconds", type=float, default=3.0, help="of each load in each round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--warm-up", type=float, default=12.0, metavar="SECONDS", help="of each side, before")
    parser.add_argument(
        "--echo", action="store_true", help="beside a server that answers and does nothing else"
    )
    parser.add_argument("--only", default="", help='some rows: "8 x 1 x 4,64 x 1 x 4"')
    parser.add_argument(
        "--brokers", type=int, nargs="+", default=(1, 3), help="sizes of the clusters, with --log kafka"
    )
    parser.add_argument("-o", "--output", choices=("table", "json"), default="table")
    return parser.parse_args()


if __name__ == "__main__":
    raise SystemExit(main())
