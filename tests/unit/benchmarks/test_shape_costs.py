"""The check that requests of equal size but different shape cost similar CPU time."""

from collections.abc import Callable

import pytest

from tests.benchmarks.load import LoadFigures
from tests.benchmarks.loads import WriteLoad
from tests.benchmarks.shape_costs import make_shapes, measure_costs
from tests.benchmarks.system_under_test import SystemUnderTest


class FakeSystem(SystemUnderTest):
    """A system under test with given CPU times instead of a process."""

    def __init__(self, cpu_us: Callable[[WriteLoad], float], errors: int = 0) -> None:
        super().__init__("ours", "127.0.0.1", 1, [])
        self._cpu_us = cpu_us
        self._errors = errors

    def drive(  # type: ignore[override]
        self, workload: WriteLoad, seconds: float, *, answers_max: int = 0
    ) -> LoadFigures:
        return LoadFigures(1, 1, 1, 1, 1, self._errors, self._cpu_us(workload), 42 if self._errors else 0)


def test_shape_costing_over_three_times_the_cheapest_is_found() -> None:
    prices = {"write": 10.0, "repeated": 30.0, "unordered": 31.0}
    side = FakeSystem(lambda load: prices.get(load.kind, 20.0))
    found = {
        cost.load.kind: cost.is_within_limit for cost in measure_costs(side, make_shapes(10, 4), rounds=2)
    }
    assert found == {
        "write": True,
        "repeated": True,
        "one repeated": True,
        "overlapping": True,
        "unordered": False,
        "mixed": True,
    }


def test_requests_in_flight_are_compared_but_set_no_minimum() -> None:
    side = FakeSystem(lambda load: 1.0 if load.in_flight > 1 else 10.0)
    assert all(cost.is_within_limit for cost in measure_costs(side, make_shapes(1, 4), rounds=1))
    side = FakeSystem(lambda load: 31.0 if load.in_flight > 1 else 10.0)
    assert [cost.is_within_limit for cost in measure_costs(side, make_shapes(1, 4), rounds=1)][-1] is False


def test_failed_request_raises_an_error() -> None:
    with pytest.raises(RuntimeError, match="INVALID_REQUEST"):
        measure_costs(FakeSystem(lambda load: 1.0, errors=3), make_shapes(10, 4), rounds=1)
