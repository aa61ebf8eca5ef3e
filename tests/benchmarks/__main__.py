"""`make bench`: drive this coordinator, and Kafka's own if Java is installed, with the same requests.

All measured systems run on the same machine and are driven in turn, round by round. Before the measurement,
some seconds of load warm up the JVM. The first table compares each system with Kafka's coordinator: the
ratios of CPU time per request and of requests per second, and the target of each ratio. Kafka acknowledges
writes that are in the page cache, as this coordinator does with journal.sync=os. With `--against COMMIT`,
another commit of this project is built and measured as an additional system. With `--log kafka`, this
coordinator stores its state in a topic of the compared cluster. With this option, reads are measured too,
because each read sends a request to a broker.
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

from tests.benchmarks.commits import built_commit
from tests.benchmarks.frames import Workload
from tests.benchmarks.kafka_log import LoadingTime, SystemsOnCluster, systems_on_cluster
from tests.benchmarks.loads import WriteLoad
from tests.benchmarks.machine import Machine
from tests.benchmarks.recording import load_recordings
from tests.benchmarks.replay import ReplayWorkload
from tests.benchmarks.report import LEGEND, as_json, failure_lines, make_report_tables, wide_console
from tests.benchmarks.shape_costs import SIZES, measure_request_shapes, shape_cost_table
from tests.benchmarks.start_systems import NEWEST, start_coordinator, start_kafka
from tests.benchmarks.system_under_test import SystemUnderTest
from tests.benchmarks.targets import OVERLOADS, SHAPES, TODAY
from tests.kafka.toolchain import install_hint, missing_programs

OVERLOAD_LOADS = [load for overload in OVERLOADS for load in (overload.saturating, overload.ten_times)]
# A coordinator serves several brokers; a load with a single connection would measure only the latency.
BROKERS = 8
REPLAYS = [ReplayWorkload(recording, BROKERS) for recording in load_recordings()]
ALONE = [
    ReplayWorkload(recording, 1) for recording in load_recordings() if recording.about["broker"] == NEWEST
]
ROWS: dict[str, list[Workload]] = {
    "recorded": [*REPLAYS],
    "alone": [*ALONE],
    "shapes": [*SHAPES],
    "today": [*TODAY],
    "overload": OVERLOAD_LOADS,
}
KAFKA_LOG_LOADS: list[Workload] = [
    *TODAY,
    WriteLoad(8, 10, 4, "repeated"),
    *(WriteLoad(n, 1, 4, kind) for kind in ("read", "summary") for n in (1, 8, 64)),
]
WARM_UP = (WriteLoad(8, 1, 4), WriteLoad(8, 50, 20))
SYNCS = ("os", "always")


class BenchmarkPlan(NamedTuple):
    """The workloads, the number of rounds and their duration."""

    workloads: Sequence[Workload]
    rounds: int
    seconds: float
    warm_up_s: float

    def __str__(self) -> str:
        rounds = f"{self.rounds} rounds of {self.seconds:g} s"
        return f"{rounds} after {self.warm_up_s:g} s of warm-up, the systems in turn"


def start_measured_systems(
    stack: ExitStack, folder: Path, options: argparse.Namespace
) -> tuple[list[SystemUnderTest], list[SystemsOnCluster]]:
    """Start the coordinators to measure and return them; their processes stop when `stack` is closed."""
    if options.log == "kafka":
        pairs = [
            stack.enter_context(systems_on_cluster(folder / f"brokers-{brokers}", brokers))
            for brokers in options.brokers
        ]
        return [side for pair in pairs for side in pair.sides], pairs
    sides = [stack.enter_context(start_coordinator(folder / sync, sync)) for sync in options.sync]
    if options.pure_python:
        for sync in options.sync:
            sides.append(
                stack.enter_context(start_coordinator(folder / f"pure-{sync}", sync, pure_python=True))
            )
    if options.against:
        own = folder / "against"
        own.mkdir()
        commit = stack.enter_context(built_commit(options.against, own))
        for sync in options.sync:
            sides.append(stack.enter_context(start_coordinator(own / sync, sync, commit=commit)))
    if not missing_programs() and not options.without_kafka:
        sides.append(stack.enter_context(start_kafka(folder / "kafka")))
    return sides, []


def measure_all(sides: list[SystemUnderTest], plan: BenchmarkPlan) -> None:
    """Drive all systems with each workload, round by round."""
    with Progress(console=Console(stderr=True), transient=True) as progress:
        work = progress.add_task("measuring", total=(plan.rounds * len(plan.workloads) + 1) * len(sides))
        for side in sides:
            progress.update(work, description=f"{side.name}, warming up")
            for load in WARM_UP:
                side.drive(load, plan.warm_up_s / len(WARM_UP))
            progress.advance(work)
        for number in range(plan.rounds):
            for workload in plan.workloads:
                # The order of the systems rotates, so that no system has an advantage by its position.
                for side in sides[number % len(sides) :] + sides[: number % len(sides)]:
                    progress.update(work, description=f"{side.name}, {workload}")
                    side.add(workload, side.drive(workload, plan.seconds))
                    progress.advance(work)


def main() -> int:
    """Measure all coordinators and print the tables; return 1 if a request was refused."""
    options = _parse_options()
    console = wide_console()
    missing = missing_programs()
    if missing and options.log == "kafka":
        console.print(f"nothing to measure: {install_hint(missing)}")
        return 1
    plan = BenchmarkPlan(_select_workloads(options), options.rounds, options.seconds, options.warm_up)
    machine = Machine()
    if options.check_shapes:
        return _check_shapes(console, machine)
    with tempfile.TemporaryDirectory(prefix="share-coordinator-bench-") as name, ExitStack() as stack:
        sides, pairs = start_measured_systems(stack, Path(name), options)
        measure_all(sides, plan)
        loadings = [pair.restart_and_load() for pair in pairs]
    if options.output == "json":
        rows = {"workloads": list(map(str, plan.workloads))}
        facts = {"machine": machine.properties(), "plan": plan._asdict() | rows}
        print(json.dumps(facts | as_json(sides) | {"loadings": [each._asdict() for each in loadings]}))
    else:
        _print_tables(console, machine, plan, sides, loadings, markdown=options.output == "markdown")
        if missing:
            console.print(f"without Kafka's own coordinator: {install_hint(missing)}")
    return 1 if failure_lines(sides) else 0


def _check_shapes(console: Console, machine: Machine) -> int:
    with tempfile.TemporaryDirectory(prefix="share-coordinator-bench-") as name:
        found = measure_request_shapes(Path(name), SIZES)
    for line in machine.lines():
        console.print(line, highlight=False)
    console.print(shape_cost_table(found).table())
    return 0 if all(cost.is_within_limit for cost in found) else 1


def _select_workloads(options: argparse.Namespace) -> list[Workload]:
    every = (
        KAFKA_LOG_LOADS if options.log == "kafka" else [row for name in options.rows for row in ROWS[name]]
    )
    only = options.only.split(";") if options.only else []
    return [workload for workload in dict.fromkeys(every) if not only or str(workload) in only]


def _print_tables(
    console: Console,
    machine: Machine,
    plan: BenchmarkPlan,
    sides: list[SystemUnderTest],
    loadings: Sequence[LoadingTime],
    *,
    markdown: bool,
) -> None:
    for line in machine.lines():
        console.print(line, highlight=False)
    console.print(f"{plan}; the load generator runs on the same machine")
    for side in sides:
        if side.settings:
            console.print(f"{side.name}: {side.settings}", highlight=False)
    console.print(f"rows: {LEGEND}\n")
    for sheet in make_report_tables(sides, plan.workloads):
        if markdown:
            print(sheet.markdown(), end="\n\n")
        else:
            console.print(sheet.table())
            console.print()
    for loading in loadings:
        console.print(
            f"after a restart, this coordinator with {loading.name} claimed all shards and loaded "
            f"{loading.records:,} records in {loading.seconds:.2f} s "
            f"({loading.records / loading.seconds:,.0f} records/s)"
        )
    for line in failure_lines(sides):
        console.print(f"ERROR: {line}")


def _parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make bench", description=__doc__)
    parser.add_argument(
        "--log",
        choices=("journal", "kafka"),
        default="journal",
        help="where this coordinator stores its state",
    )
    parser.add_argument(
        "--seconds", type=float, default=1.5, help="duration of a workload, for each system and round"
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--warm-up", type=float, default=12.0, metavar="SECONDS", help="warm-up of each system"
    )
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=list(ROWS), help="groups of workloads")
    parser.add_argument("--only", default="", help='some workloads: "8 x 1 x 4; 8 x 10 x 4 repeated"')
    parser.add_argument(
        "--sync", nargs="+", choices=SYNCS, default=SYNCS, help="journal.sync of this coordinator"
    )
    parser.add_argument("--against", metavar="COMMIT", help="measure another commit of this project too")
    parser.add_argument(
        "--pure-python", action="store_true", help="measure this coordinator without its compiled module too"
    )
    parser.add_argument(
        "--check-shapes",
        action="store_true",
        help="only compare the CPU time of request shapes; fails if one costs three times the cheapest",
    )
    parser.add_argument("--without-kafka", action="store_true", help="measure only this project")
    parser.add_argument(
        "--brokers",
        type=int,
        nargs="+",
        default=(1, 3),
        help="numbers of brokers of the clusters, with --log kafka",
    )
    parser.add_argument("-o", "--output", choices=("table", "markdown", "json"), default="table")
    options = parser.parse_args()
    options.only = ";".join(part.strip() for part in options.only.split(";"))
    return options


if __name__ == "__main__":
    raise SystemExit(main())
