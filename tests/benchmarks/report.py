"""Format the tables of a benchmark: ratios with their targets, and the measured figures."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Column, Table

from tests.benchmarks.frames import Workload
from tests.benchmarks.system_under_test import SystemUnderTest
from tests.benchmarks.targets import (
    OVERLOADS,
    RatioTarget,
    compare_overload,
    compare_with_target,
    targets_against_other_commit,
    targets_to_kafka,
)

# A table that is wider than its terminal loses its last columns.
LINE_WIDTH_MIN = 240

LEGEND = "connections x share-partition entries a request x state batches in each entry"

# Two systems that are compared; the ratio is the figure of the first divided by that of the second.
SystemPair = tuple[SystemUnderTest, SystemUnderTest]


def wide_console() -> Console:
    """Return a console that is wide enough for every table."""
    return Console(width=max(Console().width, LINE_WIDTH_MIN))


class ResultTable(NamedTuple):
    """A table of text, for a terminal or a Markdown page."""

    header: Sequence[str]
    rows: Sequence[Sequence[str]]

    def table(self) -> Table:
        """Return the table for a terminal."""
        table = Table(*(Column(name, no_wrap=True) for name in self.header), box=None)
        for row in self.rows:
            table.add_row(*row)
        return table

    def markdown(self) -> str:
        """Return the table as Markdown."""
        lines = [self.header, ["---"] * len(self.header), *self.rows]
        return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def pairs_with_kafka(sides: Sequence[SystemUnderTest]) -> list[SystemPair]:
    """Pair each system of the working tree with Kafka's coordinator on the same cluster."""
    kafka = {side.cluster: side for side in sides if side.is_kafka}
    ours = [side for side in sides if side.log and not side.commit]
    return [(side, kafka[side.cluster]) for side in ours if side.cluster in kafka]


def pairs_with_commit(sides: Sequence[SystemUnderTest]) -> list[SystemPair]:
    """Pair each system of the working tree with the same system (journal.sync) of the other Git commit."""
    return [
        (side, other)
        for other in sides
        for side in sides
        if other.commit and side.log == other.log and not side.commit
    ]


def make_report_tables(sides: Sequence[SystemUnderTest], workloads: Sequence[Workload]) -> list[ResultTable]:
    """Return all tables for which the systems have figures."""
    tables = [
        ratio_table("ours / Kafka", pairs_with_kafka(sides), workloads, targets_to_kafka),
        overload_table(sides),
        ratio_table("ours / other commit", pairs_with_commit(sides), workloads, targets_against_other_commit),
        figures_table(sides, workloads),
    ]
    return [sheet for sheet in tables if sheet.rows]


def ratio_table(
    title: str,
    pairs: Sequence[SystemPair],
    workloads: Sequence[Workload],
    targets: Callable[[Workload], list[RatioTarget]],
) -> ResultTable:
    """Return a table with the ratios of each pair of systems.

    A ratio that misses its target is followed by the target.
    """
    rows = [
        [str(target), *(str(compare_with_target(target, *pair)) for pair in pairs)]
        for workload in workloads
        for target in targets(workload)
        if pairs
    ]
    return ResultTable([title, *(f"{ours.name} / {theirs.name}" for ours, theirs in pairs)], rows)


def overload_table(sides: Sequence[SystemUnderTest]) -> ResultTable:
    """Return the request rate at ten times the saturating load, relative to the peak rate of each system."""
    rows = []
    for overload in OVERLOADS:
        verdicts = [compare_overload(overload, side) for side in sides]
        if any(verdicts):
            loads = f"{overload.ten_times} / {overload.saturating}"
            rows.append([loads, *("" if each is None else str(each) for each in verdicts)])
    return ResultTable(["RPC/s at ten times the saturating load", *(side.name for side in sides)], rows)


def figures_table(sides: Sequence[SystemUnderTest], workloads: Sequence[Workload]) -> ResultTable:
    """Return the median figures."""
    header = ["CPU µs a request; RPC/s; p50/p99/p99.9/max µs", *(side.name for side in sides)]
    rows = []
    for workload in workloads:
        cells = [str(workload)]
        for side in sides:
            figures = side.median(workload)
            latencies = "/".join(f"{us:,.0f}" for us in figures[1:5])
            cell = f"{figures.cpu_us:,.1f}; {figures.requests_per_second:,.0f}; {latencies}"
            cells.append(" ".join(filter(None, (cell, figures.error_text))))
        rows.append(cells)
    return ResultTable(header, rows)


def failure_lines(sides: Sequence[SystemUnderTest]) -> list[str]:
    """Return a line for each workload and system with failed responses."""
    return [
        f"{side.name}, {workload}: {side.median(workload).error_text}"
        for side in sides
        for workload in side.rounds
        if side.median(workload).errors
    ]


def as_json(sides: Sequence[SystemUnderTest]) -> dict[str, Any]:
    """Return the figures of all rounds and systems, and whether each target is met."""
    verdicts = [
        (target, ours, compare_with_target(target, ours, kafka))
        for ours, kafka in pairs_with_kafka(sides)
        for workload in ours.rounds
        for target in targets_to_kafka(workload)
    ]
    return {
        "sides": {
            side.name: {
                "settings": side.settings,
                "compiled_module": side.is_compiled,
                "rounds": {
                    str(workload): [figures._asdict() for figures in rounds]
                    for workload, rounds in side.rounds.items()
                },
            }
            for side in sides
        },
        "ratios": [
            {
                "row": str(target),
                "side": side.name,
                "aim": verdict.asked,
                "met": verdict.met,
                **verdict.ratio._asdict(),
            }
            for target, side, verdict in verdicts
        ],
    }
