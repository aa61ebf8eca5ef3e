"""The figures of benchmark rounds, their targets, and the tables of the report."""

import pytest

from tests.benchmarks.load import LoadFigures
from tests.benchmarks.loads import WriteLoad
from tests.benchmarks.report import (
    ResultTable,
    as_json,
    failure_lines,
    make_report_tables,
    overload_table,
    pairs_with_commit,
    pairs_with_kafka,
)
from tests.benchmarks.spread import compute_spread, ratio_spread
from tests.benchmarks.system_under_test import SystemUnderTest
from tests.benchmarks.targets import RatioTarget, TargetVerdict, compare_with_target, targets_to_kafka

LOAD, TEN_TIMES = WriteLoad(64, 1, 4), WriteLoad(640, 1, 4)
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


def test_spread_is_median_minimum_and_maximum() -> None:
    assert compute_spread([5.0, 1.0, 3.0]) == (3.0, 1.0, 5.0)
    assert str(compute_spread([1234.5])) == "1,234 (1,234-1,234)"
    assert str(compute_spread([12.34, 5.678])) == "9.01 (5.68-12.3)"


def test_ratios_are_taken_round_by_round() -> None:
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
        # With journal.sync=always, the target limits the latency in microseconds. Kafka's is ignored.
        (LATENCY, "always", 1, 300, True),
        (LATENCY, "always", 1, 301, False),
    ],
)
def test_higher_is_better_except_for_latencies(
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


def test_single_connection_may_take_more_cpu_time() -> None:
    loads = (LOAD, WriteLoad(1, 1, 4))
    assert [targets_to_kafka(load)[0].required["os"] for load in loads] == [0.25, 0.45]


def test_systems_are_compared_with_kafka_on_the_same_cluster_and_with_a_commit_of_the_same_log() -> None:
    ours = [make_system(f"ours, {log}", 900, log=log) for log in ("os", "always")]
    commit = [make_system(f"abc, {log}", 1000, log=log, commit="abc") for log in ("os", "always")]
    kafka = make_system("Kafka 4.4.0", 300)
    topic = make_system("ours, 3 brokers", 500, log="topic", cluster="3 brokers")
    other_kafka = make_system("Kafka 4.4.0, 3 brokers", 500, cluster="3 brokers")
    sides = [*ours, *commit, topic, kafka, other_kafka]
    assert pairs_with_kafka(sides) == [(ours[0], kafka), (ours[1], kafka), (topic, other_kafka)]
    assert pairs_with_commit(sides) == list(zip(ours, commit, strict=True))
    to_kafka, to_commit, figures = make_report_tables(sides, [LOAD])
    assert to_kafka.header[1] == "ours, os / Kafka 4.4.0"
    assert to_kafka.rows[1][0] == "64 x 1 x 4: RPC/s"
    assert to_kafka.rows[1][3] == "1.00 (1.00-1.00), NO: ≥ 1.4"
    assert to_commit.rows[1] == ["64 x 1 x 4: RPC/s", "0.90 (0.90-0.90)", "0.90 (0.90-0.90)"]
    assert figures.rows[0][:2] == ["64 x 1 x 4", "1,111.1; 900; 100/200/300/400"]


@pytest.mark.parametrize(("rate", "shown"), [(800, "0.80 (0.80-0.80)"), (790, "0.79 (0.79-0.79), NO: ≥ 0.8")])
def test_overload_is_compared_with_the_peak_of_the_same_system(rate: int, shown: str) -> None:
    ours = make_system("ours, sync=os", 1000, log="os")
    ours.add(TEN_TIMES, LoadFigures(rate, 1, 2, 3, 4, 0))
    assert overload_table([ours]).rows == [["640 x 1 x 4 / 64 x 1 x 4", shown]]


def test_failed_responses_are_reported_with_their_error_code() -> None:
    refused = make_system("ours", 1000, 1000, errors=3)
    assert failure_lines([refused]) == ["ours, 64 x 1 x 4: 6 ERRORS, first INVALID_REQUEST"]
    assert failure_lines([make_system("ours", 1000)]) == []


def test_json_contains_all_rounds_and_verdicts() -> None:
    found = as_json([make_system("Kafka 4.4.0", 100, 200), make_system("ours", 450, 900, log="os")])
    rounds = found["sides"]["ours"]["rounds"]["64 x 1 x 4"]
    assert [figures["requests_per_second"] for figures in rounds] == [450, 900]
    (cpu, rate) = found["ratios"]
    assert (cpu["row"], cpu["met"]) == ("64 x 1 x 4: CPU", True)
    assert (rate["row"], rate["median"], rate["aim"]) == ("64 x 1 x 4: RPC/s", 4.5, "≥ 2.5")


def test_table_is_rendered_as_markdown() -> None:
    assert ResultTable(["a", "b"], [["1", "2"]]).markdown() == "| a | b |\n| --- | --- |\n| 1 | 2 |"
