"""The tables of the benchmark report."""

import pytest

from tests.benchmarks.load import LoadFigures
from tests.benchmarks.loads import WriteLoad
from tests.benchmarks.report import (
    ResultTable,
    commit_comparison_table,
    failure_lines,
    figures_table,
    overload_table,
    ratio_table,
)
from tests.benchmarks.system_under_test import SystemUnderTest

LOAD, TEN_TIMES = WriteLoad(64, 1, 4), WriteLoad(640, 1, 4)


def make_system(
    name: str, *rates: float, load: WriteLoad = LOAD, errors: int = 0, **given: str
) -> SystemUnderTest:
    made = SystemUnderTest(name, "127.0.0.1", 9095, [bytes(16)], **given)
    for rate in rates:
        made.add(load, LoadFigures(rate, 100, 200, 300, 400, errors, 1e6 / rate, 42 if errors else 0))
    return made


def test_ratio_to_the_paired_kafka_is_taken_round_by_round() -> None:
    ours = make_system("ours", 1000, 3000, 6000, comparison_group="1 broker")
    kafka = make_system("Kafka", 1000, 2000, 8000, comparison_group="1 broker")
    (row,) = figures_table([ours, kafka], [LOAD]).rows
    assert row == [
        "64 x 1 x 4",
        "333.3; 3,000; 100/200/300/400",
        "1.00 (0.75-1.50)",
        "500.0; 2,000; 100/200/300/400",
    ]


def test_cpu_time_is_the_first_column() -> None:
    ours, kafka = make_system("ours, sync=os", 3000, sync="os"), make_system("Kafka 4.4.0", 1000)
    sheet = ratio_table([ours, kafka], [LOAD])
    assert sheet is not None
    assert sheet.header[1] == "CPU, sync=os"
    assert sheet.rows == [["64 x 1 x 4", "0.33 (0.33-0.33), NO: ≤ 0.25", "3.00 (3.00-3.00)"]]


def test_commit_is_compared_at_the_same_sync_mode() -> None:
    sides = [
        make_system("ours, sync=os", 900, sync="os"),
        make_system("ours, sync=always", 890, sync="always"),
        make_system("abc, sync=os", 1000, sync="os", commit="abc"),
        make_system("abc, sync=always", 1000, sync="always", commit="abc"),
    ]
    sheet = commit_comparison_table(sides, [LOAD])
    assert sheet is not None
    assert sheet.rows[0][2:5] == ["0.90 (0.90-0.90)", "≥ 0.9", "yes"]
    assert sheet.rows[0][6:9] == ["0.89 (0.89-0.89)", "≥ 0.9", "NO"]


@pytest.mark.parametrize(("rate", "met"), [(800, "yes"), (790, "NO")])
def test_overload_is_compared_with_the_peak_of_the_same_system(rate: int, met: str) -> None:
    ours = make_system("ours, sync=os", 1000, sync="os")
    ours.add(TEN_TIMES, LoadFigures(rate, 1, 2, 3, 4, 0))
    (row,) = overload_table([ours]).rows
    assert row[2] == met


def test_failed_responses_are_reported_with_their_error_code() -> None:
    refused = make_system("ours", 1000, 1000, errors=3)
    assert failure_lines([refused]) == ["ours, 64 x 1 x 4: 6 ERRORS, first INVALID_REQUEST"]
    assert failure_lines([make_system("ours", 1000)]) == []


def test_table_is_rendered_as_markdown() -> None:
    assert ResultTable(["a", "b"], [["1", "2"]]).markdown() == "| a | b |\n| --- | --- |\n| 1 | 2 |"
