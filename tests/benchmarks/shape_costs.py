"""Compare the CPU cost of requests of different shape: `python -m tests.benchmarks --check-shapes`.

The cost is the coordinator's CPU time for one share-partition entry, from the CPU clock of its process. The
number of requests is fixed, so the load of the machine hardly affects it. Shapes of one size have the same
numbers of share-partition entries and state batches in a request. They differ in repetitions, in the
order of the batches, in the RPCs between the writes, and in the length of the queue. No shape may cost more
than three times the cheapest shape of its size. This limit detects slow paths.
"""

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from tests.benchmarks.loads import WriteLoad
from tests.benchmarks.report import ResultTable
from tests.benchmarks.start_systems import start_coordinator
from tests.benchmarks.system_under_test import SystemUnderTest

TIMES_MAX = 3.0
_REQUESTS = 4_000
_TIMES_IN_FLIGHT = 5
# A time limit for a machine that is very slow.
_SECONDS_MAX = 60.0
# Share-partition entries per request, and state batches in each.
SIZES = ((1, 4), (10, 4), (50, 4), (50, 20))
KINDS = ("write", "repeated", "one repeated", "overlapping", "unordered", "mixed")
_CONNECTIONS = 8
# Queues of 20,000 operations, through many connections and through many requests in flight.
_QUEUED = {1: WriteLoad(320, 1, 4, in_flight=64), 50: WriteLoad(400, 50, 4)}


class ShapeCost(NamedTuple):
    """The CPU time of one share-partition entry, and its ratio to the cheapest shape of the size.

    Only shapes with one request in flight can be the cheapest, because several requests share system calls.
    """

    load: WriteLoad
    us_per_entry: float
    times: float

    @property
    def is_within_limit(self) -> bool:
        return self.times <= TIMES_MAX


def make_request_shapes(partitions: int, batches: int) -> list[WriteLoad]:
    """Return the request shapes of one size.

    Shapes that repeat a share-partition need more than one entry.
    """
    kinds = [kind for kind in KINDS if partitions > 1 or "repeated" not in kind]
    shapes = [WriteLoad(_CONNECTIONS, partitions, batches, kind) for kind in kinds]
    queued = _QUEUED.get(partitions)
    return [*shapes, queued] if queued and queued.batches == batches else shapes


def measure_costs(
    side: SystemUnderTest, loads: Sequence[WriteLoad], *, rounds: int, requests: int = _REQUESTS
) -> list[ShapeCost]:
    """Measure shapes of one size in turn, and return the minimum CPU time of the rounds.

    Other processes use the same CPU caches and can only increase the CPU time, so the minimum is the most
    precise figure. All shapes are measured in every round. Raises RuntimeError if the coordinator refuses a
    request.
    """
    costs = [{load: _us_per_entry(side, load, requests) for load in loads} for _ in range(rounds)]
    measured = {load: min(each[load] for each in costs) for load in loads}
    least = min(us for load, us in measured.items() if load.in_flight == 1)
    return [ShapeCost(load, us, us / least) for load, us in measured.items()]


def _us_per_entry(side: SystemUnderTest, load: WriteLoad, requests: int) -> float:
    # With many requests in flight, the queues must stay full during most of the run.
    at_least = _TIMES_IN_FLIGHT * load.connections * load.in_flight
    figures = side.drive(load, _SECONDS_MAX, answers_max=max(requests, at_least))
    if figures.errors:
        raise RuntimeError(f"{load}: {figures.error_text}")
    return figures.cpu_us / load.partitions


def measure_request_shapes(
    folder: Path, sizes: Sequence[tuple[int, int]], *, rounds: int = 3, requests: int = _REQUESTS
) -> list[ShapeCost]:
    """Measure every shape of these sizes with a dedicated coordinator."""
    with ExitStack() as stack:
        side = stack.enter_context(start_coordinator(folder / "shapes", "os"))
        side.drive(WriteLoad(_CONNECTIONS, 10, 4), _SECONDS_MAX, answers_max=requests)
        return [
            cost
            for size in sizes
            for cost in measure_costs(side, make_request_shapes(*size), rounds=rounds, requests=requests)
        ]


def shape_cost_table(found: Sequence[ShapeCost]) -> ResultTable:
    """Return a table of the costs."""
    rows = [
        [
            str(cost.load),
            f"{cost.us_per_entry:.2f}",
            f"{cost.times:.2f}",
            f"≤ {TIMES_MAX:g}",
            "yes" if cost.is_within_limit else "NO",
        ]
        for cost in found
    ]
    return ResultTable(["shape", "CPU µs an entry", "times the cheapest", "aim", "met"], rows)
