"""What a comparison prints: the ratios with what was aimed at, and the figures behind them."""

from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Column, Table

from tests.benchmarks.aims import AIMS, verdict
from tests.benchmarks.frames import Load
from tests.benchmarks.side import Side
from tests.benchmarks.spread import ratios

# A table that is wider than its terminal loses its last columns.
LINE_WIDTH_MIN = 240

LEGEND = "connections x share-partitions a request x state batches in each"


def wide_console() -> Console:
    """Return a console that cuts no table off: what reads it may be no terminal, or a narrow one."""
    return Console(width=max(Console().width, LINE_WIDTH_MIN))


def ratio_table(sides: Sequence[Side]) -> Table | None:
    """Lay out ours / Kafka's, a line for each aim that was measured; None without Kafka."""
    kafka = next((side for side in sides if side.is_kafka), None)
    mine = [side for side in sides if side.sync]
    if kafka is None or not mine:
        return None
    table = Table(Column("ours / Kafka", no_wrap=True), box=None, title_justify="left")
    for side in mine:
        table.add_column(f"{side.name}\nmedian (least-greatest)", justify="right", no_wrap=True)
        table.add_column("\naim", justify="right", no_wrap=True)
        table.add_column("\nmet", no_wrap=True)
    for aim in AIMS:
        if aim.load in kafka.rounds:
            cells = []
            for side in mine:
                found = verdict(aim, side, kafka)
                cells += [str(found.ratio), found.asked, _met(found.met)]
            table.add_row(str(aim), *cells)
    return table


def _met(met: bool | None) -> str:
    return {True: "yes", False: "NO", None: ""}[met]


def figures_table(sides: Sequence[Side], loads: Sequence[Load]) -> Table:
    """Lay the medians out, a line for each load, with the ratio to the Kafka that a side is beside."""
    theirs = {side.beside: side for side in sides if side.beside and side.is_kafka}
    table = Table(Column("", no_wrap=True), box=None)
    for side in sides:
        table.add_column(f"{side.name}\nRPC/s  p50/p99/p99.9/max µs", justify="right", no_wrap=True)
        if side.beside in theirs and not side.is_kafka:
            table.add_column("ours / Kafka\nRPC/s", justify="right", no_wrap=True)
    for load in loads:
        cells = []
        for side in sides:
            figures = side.median(load)
            cell = f"{figures.requests_per_second:,.0f}  " + "/".join(f"{us:,.0f}" for us in figures[1:5])
            cells.append(cell + (f"  {figures.errors} ERRORS" if figures.errors else ""))
            if side.beside in theirs and not side.is_kafka:
                both = (each.of(load, "requests_per_second") for each in (side, theirs[side.beside]))
                cells.append(str(ratios(*both)))
        table.add_row(str(load), *cells)
    return table


def as_json(sides: Sequence[Side]) -> dict[str, Any]:
    """Return all rounds of all sides, and the verdicts."""
    kafka = next((side for side in sides if side.is_kafka), None)
    found: dict[str, Any] = {
        "sides": {
            side.name: {
                "settings": side.settings,
                "rounds": {
                    str(load): [figures._asdict() for figures in rounds]
                    for load, rounds in side.rounds.items()
                },
            }
            for side in sides
        }
    }
    if kafka is not None:
        found["ratios"] = [
            {
                "row": str(aim),
                "side": side.name,
                "aim": held.asked,
                "met": held.met,
                **held.ratio._asdict(),
            }
            for aim in AIMS
            for side in sides
            if side.sync and aim.load in side.rounds
            for held in (verdict(aim, side, kafka),)
        ]
    return found
