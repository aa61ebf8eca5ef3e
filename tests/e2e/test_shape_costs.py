"""Compare the CPU cost of write requests of equal size but different shape, as with `--check-shapes`."""

import pytest

from tests.benchmarks.shape_costs import KINDS, TIMES_MAX, ShapeCost, measure_shapes

pytestmark = pytest.mark.e2e

SIZE = (10, 4)
_NEAR_THE_LIMIT = pytest.mark.xfail(strict=False, reason="2 to 4 times the cheapest shape")


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> dict[str, ShapeCost]:
    found = measure_shapes(tmp_path_factory.mktemp("shapes"), [SIZE], rounds=2, seconds=0.3)
    return {cost.load.kind: cost for cost in found}


@pytest.mark.parametrize(
    "kind",
    [
        "write",
        "repeated",
        "one repeated",
        "overlapping",
        "unordered",
        pytest.param("mixed", marks=_NEAR_THE_LIMIT),
    ],
)
def test_shape_costs_at_most_three_times_the_cheapest(kind: str, measured: dict[str, ShapeCost]) -> None:
    assert measured[kind].times <= TIMES_MAX, measured


def test_every_kind_is_measured(measured: dict[str, ShapeCost]) -> None:
    assert list(measured) == list(KINDS)
