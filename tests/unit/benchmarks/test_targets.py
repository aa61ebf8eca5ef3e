"""Benchmark targets, and whether the rounds of two systems meet them."""

import pytest

from tests.benchmarks.load import LoadFigures
from tests.benchmarks.loads import WriteLoad
from tests.benchmarks.report import as_json
from tests.benchmarks.system_under_test import SystemUnderTest
from tests.benchmarks.targets import RatioTarget, compare_with_target, cpu_time_target, is_met, target_text

LOAD = WriteLoad(8, 1, 4)
RATE = RatioTarget(LOAD, "requests_per_second", 4, 1.2)
LATENCY = RatioTarget(LOAD, "p50_us", 0.75, None, always_us_max=300)


def make_system(name: str, sync: str, rounds: list[tuple[float, float]]) -> SystemUnderTest:
    """Return a system under test with rounds of (requests per second, p50 in microseconds)."""
    made = SystemUnderTest(name, "127.0.0.1", 1, [bytes(16)], sync=sync)
    for rate, p50_us in rounds:
        made.add(LOAD, LoadFigures(rate, p50_us, 2 * p50_us, 3 * p50_us, 4 * p50_us, 0, 1e6 / rate))
    return made


@pytest.mark.parametrize(
    ("aim", "sync", "ratio", "own", "met"),
    [
        (RATE, "os", 4.0, 0, True),
        (RATE, "os", 3.9, 0, False),
        (RATE, "always", 1.2, 0, True),
        (LATENCY, "os", 0.75, 900, True),
        (LATENCY, "os", 0.76, 100, False),
        # With sync=always, the target limits the coordinator's latency in microseconds. Kafka's is ignored.
        (LATENCY, "always", 9.0, 300, True),
        (LATENCY, "always", 0.1, 301, False),
        (RatioTarget(LOAD, "p50_us", None, None), "os", 1.0, 1, None),
    ],
)
def test_higher_is_better_except_for_latencies(
    aim: RatioTarget, sync: str, ratio: float, own: float, met: bool | None
) -> None:
    assert is_met(aim, sync, ratio, own) is met


def test_target_text_shows_the_direction() -> None:
    assert target_text(RATE, "os") == "≥ 4"
    assert target_text(LATENCY, "os") == "≤ 0.75"
    assert target_text(LATENCY, "always") == "≤ 0.3 ms"
    assert target_text(RatioTarget(LOAD, "p50_us", None, None), "os") == "-"


def test_verdict_uses_the_median_round() -> None:
    kafka = make_system("Kafka 4.4.0", "", [(100, 100), (100, 100), (100, 100)])
    ours = make_system("ours, sync=os", "os", [(450, 70), (100, 200), (410, 80)])
    found = compare_with_target(RATE, ours, kafka)
    assert (found.ratio, found.asked, found.met) == ((4.1, 1.0, 4.5), "≥ 4", True)
    assert compare_with_target(LATENCY, ours, kafka).met is False


def test_single_connection_may_take_more_cpu_time() -> None:
    assert (cpu_time_target(LOAD).os, cpu_time_target(WriteLoad(1, 1, 4)).os) == (0.25, 0.45)


def test_json_contains_all_rounds() -> None:
    kafka = make_system("Kafka 4.4.0", "", [(100, 100), (200, 50)])
    ours = make_system("ours, sync=os", "os", [(450, 70), (900, 40)])
    found = as_json([ours, kafka])
    rounds = found["sides"]["ours, sync=os"]["rounds"]["8 x 1 x 4"]
    assert [figures["requests_per_second"] for figures in rounds] == [450, 900]
    (rate,) = (row for row in found["ratios"] if row["row"] == "8 x 1 x 4: RPC/s")
    assert {row["row"] for row in found["ratios"]} == {"8 x 1 x 4: CPU", "8 x 1 x 4: RPC/s", "8 x 1 x 4: p99"}
    assert (rate["median"], rate["low"], rate["high"], rate["met"]) == (4.5, 4.5, 4.5, True)
