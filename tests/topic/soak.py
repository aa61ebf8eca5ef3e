"""Run random network partitions with new seeds: `python -m tests.topic.soak --minutes 30`.

First, the checkers must detect planted defects. Then each schedule has a new seed. The first failing seed
ends the run with exit code 1 and the command that repeats it. The memory and the latency of the coordinators
must not grow.
"""

import argparse
import statistics
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from random import SystemRandom
from time import monotonic
from typing import NamedTuple

from tests.kafka.jars import RELEASES, fetch_jars
from tests.simulation.history import Violation
from tests.topic.broken_coordinator import make_broken_build
from tests.topic.linked_brokers import BrokersWithFaultyLinks
from tests.topic.partition_schedule import (
    PLACES,
    FaultSchedule,
    draw_schedule,
    isolate_and_suspend,
    isolate_coordinator,
    make_island_schedule,
)
from tests.topic.partitioned_cluster import BROKER_SETTINGS, LEASES_S, PartitionedCluster

SCHEDULE_S = 6.0
# Each planted defect must be detected within this number of runs of its schedule. The defect is planted in
# each coordinator in turn.
PLANTED_RUNS = 12
LONG_LEASES_S = (6.0,) * PLACES


class PlantedDefect(NamedTuple):
    """A defect of the coordinators, and a schedule of faults in which the checkers must notice it."""

    defect: str
    schedule: Callable[[int, float], FaultSchedule]
    lasts_s: float
    leases_s: Sequence[float] = LEASES_S


PLANTED = (
    PlantedDefect("answers_from_memory_after_the_lease", isolate_coordinator, 8.0),
    PlantedDefect("answers_from_memory_after_the_lease", make_island_schedule, 12.0),
    PlantedDefect("does_not_wait_for_earlier_leases", isolate_coordinator, 7.0, LONG_LEASES_S),
    PlantedDefect(
        "measures_leases_on_a_clock_that_omits_suspensions", isolate_and_suspend, 20.0, LONG_LEASES_S
    ),
)
# The first schedules of faults warm the coordinators up. The memory and latency of the next schedules are the
# baseline.
WARM_UP = 10
COMPARED = 10
MEMORY_GROWTH_MAX = 1.25
LATENCY_GROWTH_MAX = 3.0


def main() -> int:
    """Run schedules; return 1 after a violation or a growth."""
    parser = argparse.ArgumentParser(prog="python -m tests.topic.soak")
    parser.add_argument("--minutes", type=float, default=30.0, help="how long to begin new schedules (30)")
    parser.add_argument("--schedules", type=int, help="so many schedules instead")
    parser.add_argument("--seed", type=int, help="the first seed (a random one)")
    parser.add_argument(
        "--seconds", type=float, default=SCHEDULE_S, help=f"of each schedule ({SCHEDULE_S:g})"
    )
    parser.add_argument("--no-planted", action="store_true", help="omit the planted defect")
    arguments = parser.parse_args()
    first = SystemRandom().randrange(1 << 40) if arguments.seed is None else arguments.seed
    schedules = arguments.schedules or (1 if arguments.seed is not None else None)
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        brokers = BrokersWithFaultyLinks(fetch_jars(RELEASES[-1]), directory, stack, BROKER_SETTINGS)
        if not arguments.no_planted and not _are_planted_defects_detected(brokers, directory):
            return 1
        cluster = PartitionedCluster(brokers, directory, stack, "soak")
        cluster.start()
        until_s = monotonic() + 60 * arguments.minutes
        return _run_schedules(cluster, first, arguments.seconds, schedules, until_s)


def _run_schedules(
    cluster: PartitionedCluster, first: int, seconds: float, schedules: int | None, until_s: float
) -> int:
    soak = SoakResults(cluster)
    for done in count():
        if monotonic() >= until_s if schedules is None else done >= schedules:
            break
        seed = first + done
        try:
            soak.run(seed, seconds)
        except Violation as violation:
            command = f"python -m tests.topic.soak --seed {seed} --seconds {seconds:g} --no-planted"
            sys.stdout.write(f"{violation}\nreplay: {command}\n")
            return 1
    return soak.report()


def _are_planted_defects_detected(brokers: BrokersWithFaultyLinks, directory: Path) -> bool:
    return all(
        _is_planted_defect_detected(planted, brokers, directory, f"planted-{number}")
        for number, planted in enumerate(PLANTED)
    )


def _is_planted_defect_detected(
    planted: PlantedDefect, brokers: BrokersWithFaultyLinks, directory: Path, topic: str
) -> bool:
    what = f"The planted defect {planted.defect} ({planted.schedule.__name__})"
    with ExitStack() as stack:
        build = make_broken_build(planted.defect)
        cluster = PartitionedCluster(brokers, directory, stack, topic, build=build, leases_s=planted.leases_s)
        cluster.start()
        for number in range(PLANTED_RUNS):
            try:
                cluster.run(planted.schedule(number % PLACES, planted.lasts_s))
            except Violation:
                sys.stdout.write(f"{what} is noticed after {number + 1} runs.\n")
                return True
    sys.stdout.write(f"{what} is not noticed in {PLANTED_RUNS} runs.\n")
    return False


class SoakResults:
    """The operations, the memory and the latency of all schedules."""

    def __init__(self, cluster: PartitionedCluster) -> None:
        self._cluster = cluster
        self._operations = 0
        self._memory_mb: list[float] = []
        self._latency_ms: list[float] = []

    def run(self, seed: int, seconds: float) -> None:
        """Run a schedule, and print a line."""
        clients = self._cluster.run(draw_schedule(seed, seconds))
        self._operations += len(clients.history.ops)
        self._memory_mb.append(self._cluster.memory_mb())
        self._latency_ms.append(1000 * statistics.median(clients.latencies_s))
        sys.stdout.write(
            f"{len(self._memory_mb)}: seed {seed}, {len(clients.history.ops)} operations, recovered in "
            f"{clients.recovered_s:.1f} s, {self._memory_mb[-1]:.0f} MB, {self._latency_ms[-1]:.1f} ms\n"
        )
        sys.stdout.flush()

    def report(self) -> int:
        """Print the totals; return 1 if the memory or the latency has grown."""
        sys.stdout.write(f"{len(self._memory_mb)} schedules, {self._operations} operations, no violation\n")
        if len(self._memory_mb) < WARM_UP + 2 * COMPARED:
            return 0
        grown = [
            _print_growth("memory", "MB", self._memory_mb) > MEMORY_GROWTH_MAX,
            _print_growth("latency", "ms", self._latency_ms) > LATENCY_GROWTH_MAX,
        ]
        return int(any(grown))


def _print_growth(name: str, unit: str, values: list[float]) -> float:
    before = statistics.median(values[WARM_UP : WARM_UP + COMPARED])
    after = statistics.median(values[-COMPARED:])
    sys.stdout.write(f"{name}: {before:.1f} {unit} at the begin, {after:.1f} {unit} at the end\n")
    return after / before


if __name__ == "__main__":
    sys.exit(main())
