"""Compare the CPU cost of write requests of equal size but different shape.

The cost is the CPU time of the coordinator's process for a request. The number of requests is fixed, so the
load of the machine hardly affects it. All requests have 10 share-partition entries with 4 state batches each.
They differ in repetitions, in the order of the batches, and in the RPCs between the writes. The limit detects
slow paths.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.benchmarks.loads import WriteLoad
from tests.benchmarks.start_systems import start_coordinator

pytestmark = pytest.mark.e2e

KINDS = ("write", "repeated", "one repeated", "overlapping", "unordered", "mixed")
TIMES_MAX = 3.0
ROUNDS, REQUESTS = 3, 2_000
# A time limit for a machine that is very slow.
SECONDS_MAX = 60.0


def measure_cpu_us(folder: Path) -> Iterator[tuple[str, float]]:
    """Yield the CPU time of a request of each kind, in each round."""
    with start_coordinator(folder / "shapes", "os") as side:
        side.drive(WriteLoad(8, 10, 4), SECONDS_MAX, answers_max=REQUESTS)
        for _ in range(ROUNDS):
            for kind in KINDS:
                figures = side.drive(WriteLoad(8, 10, 4, kind), SECONDS_MAX, answers_max=REQUESTS)
                assert not figures.errors, f"{kind}: {figures.error_text}"
                yield kind, figures.cpu_us


def test_each_request_shape_costs_at_most_three_times_the_cheapest(tmp_path: Path) -> None:
    costs: dict[str, float] = {}
    # Other processes use the same CPU caches and can only increase the CPU time.
    for kind, cpu_us in measure_cpu_us(tmp_path):
        costs[kind] = min(cpu_us, costs.get(kind, cpu_us))
    assert max(costs.values()) <= TIMES_MAX * min(costs.values()), costs
