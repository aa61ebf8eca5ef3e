"""Compare the CPU cost of write requests of equal size but different shape, as the benchmark does."""

import pytest

from tests.benchmarks.shape_costs import KINDS, TIMES_MAX, ShapeCost, measure_request_shapes

pytestmark = pytest.mark.e2e

SIZE = (10, 4)


@pytest.fixture(scope="module")
def shape_costs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, ShapeCost]:
    found = measure_request_shapes(tmp_path_factory.mktemp("shapes"), [SIZE], rounds=3, requests=2_000)
    return {cost.load.kind: cost for cost in found}


@pytest.mark.parametrize("kind", KINDS)
def test_each_request_shape_costs_at_most_three_times_the_cheapest(
    kind: str, shape_costs: dict[str, ShapeCost]
) -> None:
    assert shape_costs[kind].times <= TIMES_MAX, shape_costs
