"""Format the tables of a benchmark: ratios with their targets, and the measured figures."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Column, Table

from tests.benchmarks.frames import Workload
from tests.benchmarks.spread import ratio_spread
from tests.benchmarks.system_under_test import SystemUnderTest
from tests.benchmarks.targets import (
    LATENCIES,
    OVERLOADS,
    PART_OF_AGAINST,
    SHAPES,
    TODAY,
    RatioTarget,
    compare_with_target,
    cpu_time_target,
)

# A table that is wider than its terminal loses its last columns.
LINE_WIDTH_MIN = 240

LEGEND = "connections x share-partition entries a request x state batches in each entry"


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


def make_report_tables(sides: Sequence[SystemUnderTest], workloads: Sequence[Workload]) -> list[ResultTable]:
    """Return all tables for which the systems have figures."""
    made = [
        ratio_table(sides, workloads),
        latency_table(sides),
        overload_table(sides),
        commit_comparison_table(sides, workloads),
        figures_table(sides, workloads),
    ]
    return [sheet for sheet in made if sheet is not None and sheet.rows]


def _find_kafka(sides: Sequence[SystemUnderTest]) -> SystemUnderTest | None:
    return next((side for side in sides if side.is_kafka and not side.comparison_group), None)


def rate_target(workload: Workload) -> RatioTarget:
    """Return the target for the requests per second of a workload."""
    for aim in (*TODAY, *SHAPES):
        if aim.workload == workload:
            return aim
    # A workload that is no tuple is recorded traffic.
    if not isinstance(workload, tuple):
        return RatioTarget(workload, "requests_per_second", 3, 1.2)
    return RatioTarget(workload, "requests_per_second", None, None)


def ratio_table(sides: Sequence[SystemUnderTest], workloads: Sequence[Workload]) -> ResultTable | None:
    """Return the ratios to Kafka: the CPU time of a request first, then requests per second."""
    kafka = _find_kafka(sides)
    mine = [side for side in sides if side.is_working_tree_with_journal]
    if kafka is None or not mine:
        return None
    header = [f"ours / {kafka.name}"]
    for side in mine:
        short = side.name.removeprefix("ours, ")
        header += [f"CPU, {short}", f"RPC/s, {short}"]
    rows = []
    for workload in workloads:
        aims = (cpu_time_target(workload), rate_target(workload))
        rows.append([str(workload), *(_verdict_cell(aim, side, kafka) for side in mine for aim in aims)])
    return ResultTable(header, rows)


def _verdict_cell(aim: RatioTarget, side: SystemUnderTest, kafka: SystemUnderTest) -> str:
    """Return the ratio, and the target if it is missed."""
    found = compare_with_target(aim, side, kafka)
    return f"{found.ratio}, NO: {found.asked}" if found.met is False else str(found.ratio)


def latency_table(sides: Sequence[SystemUnderTest]) -> ResultTable | None:
    """Return the latency ratios to Kafka, for the workloads with a latency target."""
    kafka = _find_kafka(sides)
    mine = [side for side in sides if side.is_working_tree_with_journal]
    if kafka is None or not mine:
        return None
    header = [f"latency, ours / {kafka.name}", *(side.name.removeprefix("ours, ") for side in mine)]
    rows = [
        [str(aim), *(_verdict_cell(aim, side, kafka) for side in mine)]
        for aim in LATENCIES
        if aim.workload in kafka.rounds
    ]
    return ResultTable(header, rows)


def overload_table(sides: Sequence[SystemUnderTest]) -> ResultTable:
    """Return the request rate at ten times the saturating load, relative to the peak rate of each system."""
    rows = []
    for overload in OVERLOADS:
        row = [f"{overload.ten_times} / {overload.saturating}"]
        for side in sides:
            if {overload.ten_times, overload.saturating} <= side.rounds.keys():
                part = ratio_spread(
                    side.per_round(overload.ten_times, "requests_per_second"),
                    side.per_round(overload.saturating, "requests_per_second"),
                )
                row += [str(part), "yes" if part.median >= overload.part_of_peak else "NO"]
        if len(row) > 1:
            rows.append([*row, f"≥ {overload.part_of_peak:g}"])
    header = ["RPC/s at ten times the saturating load"]
    for side in sides:
        header += [side.name, "met"]
    return ResultTable([*header, "aim"], rows)


def commit_comparison_table(
    sides: Sequence[SystemUnderTest], workloads: Sequence[Workload]
) -> ResultTable | None:
    """Return the ratios of this tree to another commit, for the same journal.sync."""
    others = [side for side in sides if side.commit]
    if not others:
        return None
    pairs = [
        (side, other)
        for other in others
        for side in sides
        if side.is_working_tree_with_journal and side.sync == other.sync
    ]
    header = [f"ours / {others[0].commit}"]
    for side, _ in pairs:
        short = side.name.removeprefix("ours, ")
        header += [f"CPU, {short}", f"RPC/s, {short}", "aim", "met"]
    rows = []
    for workload in workloads:
        row = [str(workload)]
        for pair in pairs:
            cpu, rate = (
                ratio_spread(*(side.per_round(workload, figure) for side in pair))
                for figure in ("cpu_us", "requests_per_second")
            )
            met = "yes" if rate.median >= PART_OF_AGAINST else "NO"
            has_aim = any(aim.workload == workload for aim in TODAY)
            row += [str(cpu), str(rate), *([f"≥ {PART_OF_AGAINST:g}", met] if has_aim else ["-", ""])]
        rows.append(row)
    return ResultTable(header, rows)


def figures_table(sides: Sequence[SystemUnderTest], workloads: Sequence[Workload]) -> ResultTable:
    """Return the median figures, with the ratio to Kafka's coordinator on the same cluster."""
    theirs = {side.comparison_group: side for side in sides if side.comparison_group and side.is_kafka}
    header = ["CPU µs a request; RPC/s; p50/p99/p99.9/max µs"]
    for side in sides:
        header.append(side.name)
        if side.comparison_group in theirs and not side.is_kafka:
            header.append("ours / Kafka RPC/s")
    rows = []
    for workload in workloads:
        cells = [str(workload)]
        for side in sides:
            figures = side.median(workload)
            latencies = "/".join(f"{us:,.0f}" for us in figures[1:5])
            cell = f"{figures.cpu_us:,.1f}; {figures.requests_per_second:,.0f}; {latencies}"
            cells.append(" ".join(filter(None, (cell, figures.error_text))))
            if side.comparison_group in theirs and not side.is_kafka:
                both = (
                    each.per_round(workload, "requests_per_second")
                    for each in (side, theirs[side.comparison_group])
                )
                cells.append(str(ratio_spread(*both)))
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
    kafka = _find_kafka(sides)
    found: dict[str, Any] = {
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
        }
    }
    if kafka is not None:
        found["ratios"] = [
            {"row": str(aim), "side": side.name, "aim": held.asked, "met": held.met, **held.ratio._asdict()}
            for side in sides
            if side.is_working_tree_with_journal
            for aim in _list_targets(side)
            for held in (compare_with_target(aim, side, kafka),)
        ]
    return found


def _list_targets(side: SystemUnderTest) -> list[RatioTarget]:
    aims = [aim for workload in side.rounds for aim in (cpu_time_target(workload), rate_target(workload))]
    return [*aims, *(aim for aim in LATENCIES if aim.workload in side.rounds)]
