"""What the benchmarks print."""

from io import StringIO

from rich.console import Console

from tests.benchmarks.frames import Load
from tests.benchmarks.load import Figures
from tests.benchmarks.report import figures_table
from tests.benchmarks.side import Side

LOAD = Load(64, 1, 4)


def side(name: str, *rates: float) -> Side:
    made = Side(name, "127.0.0.1", 9095, bytes(16), beside="1 broker")
    for rate in rates:
        made.add(LOAD, Figures(rate, 100, 200, 300, 400, 0))
    return made


def test_a_side_has_its_ratio_to_kafka_round_by_round() -> None:
    ours, kafka = side("ours", 1000, 3000, 6000), side("Kafka", 1000, 2000, 8000)
    printed = StringIO()
    Console(width=200, file=printed).print(figures_table([ours, kafka], [LOAD]))
    *_, row = printed.getvalue().splitlines()
    wanted = "64 x 1 x 4  3,000 100/200/300/400  1.00 (0.75-1.50)  2,000 100/200/300/400"
    assert row.split() == wanted.split()
