"""The figures of benchmark rounds, their targets, and the tables of the report."""

import pytest

from tests.benchmarks.load import LoadFigures
from tests.benchmarks.loads import WriteLoad
from tests.benchmarks.system_under_test import SystemUnderTest, compute_spread, ratio_spread
from tests.benchmarks.targets import RatioTarget, TargetVerdict, compare_with_target

LOAD = WriteLoad(64, 1, 4)
RATE = RatioTarget(LOAD, "requests_per_second", {"os": 4, "always": 1.2})
LATENCY = RatioTarget(LOAD, "p50_us", {"os": 0.75}, always_us_max=300)


def make_system(
    name: str, *rates: float, p50_us: float = 100, errors: int = 0, **given: str
) -> SystemUnderTest:
    """Return a system with a round for each rate of requests per second."""
    made = SystemUnderTest(name, "127.0.0.1", 9095, [bytes(16)], **given)
    for rate in rates:
        made.add(LOAD, LoadFigures(rate, p50_us, 200, 300, 400, errors, 1e6 / rate, 42 if errors else 0))
    return made


def test_ratios_of_two_systems_are_computed_for_each_round() -> None:
    # The second round was slow for both systems, so it does not change the ratio.
    assert ratio_spread([200.0, 20.0], [100.0, 10.0]) == (2.0, 2.0, 2.0)
    assert ratio_spread([100.0, 300.0, 200.0], [100.0, 100.0, 100.0]) == (2.0, 1.0, 3.0)
    with pytest.raises(ValueError, match="longer"):
        ratio_spread([1.0], [1.0, 2.0])


@pytest.mark.parametrize(
    ("target", "log", "rate", "p50_us", "met"),
    [
        (RATE, "os", 400, 0, True),
        (RATE, "os", 390, 0, False),
        (RATE, "always", 120, 0, True),
        (RATE, "topic", 1, 0, None),
        (LATENCY, "os", 1, 75, True),
        (LATENCY, "os", 1, 76, False),
        # With journal.sync=always, the target is a latency in microseconds, and Kafka's latency is ignored.
        (LATENCY, "always", 1, 300, True),
        (LATENCY, "always", 1, 301, False),
    ],
)
def test_target_is_met_by_a_high_rate_or_a_low_latency(
    target: RatioTarget, log: str, rate: float, p50_us: float, met: bool | None
) -> None:
    kafka = make_system("Kafka 4.4.0", 100)
    assert compare_with_target(target, make_system("ours", rate, p50_us=p50_us, log=log), kafka).met is met


def test_verdict_uses_the_median_round_and_shows_a_missed_target() -> None:
    kafka = make_system("Kafka 4.4.0", 100, 100, 100)
    met = compare_with_target(RATE, make_system("ours", 450, 100, 410, log="os"), kafka)
    assert met == TargetVerdict(compute_spread([4.5, 1.0, 4.1]), "≥ 4", True)
    assert str(met) == "4.10 (1.00-4.50)"
    missed = compare_with_target(LATENCY, make_system("ours", 1, 1, 1, p50_us=301, log="always"), kafka)
    assert str(missed) == "3.01 (3.01-3.01), NO: ≤ 0.3 ms"
