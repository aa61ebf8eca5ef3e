"""`top`: show the health of a running coordinator and its busiest share-partitions, periodically."""

import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from coordinator.cli.admin_options import with_admin_client
from coordinator.cli.groups_commands import format_or_dash
from coordinator.cli.keyboard import open_keyboard
from coordinator.cli.output import print_line, print_table
from coordinator.printable import escape_unprintable

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text

    from coordinator.cli.admin_client import AdminClient, Answer

# The most severe problems of groups are shown.
_PROBLEMS_SHOWN = 3
# Number of screen lines that do not show share-partitions.
_OTHER_LINES = 8 + _PROBLEMS_SHOWN
_ROWS_WITHOUT_SCREEN = 20
# Columns are omitted until names have at least this width; a longer name continues on the next line.
_NAME_WIDTH = 30
_BETWEEN_COLUMNS = 2


class TopSortOrder(StrEnum):
    """The sort order of share-partitions."""

    IN_FLIGHT = "in-flight"
    DELIVERY_COUNT = "delivery-count"
    LAST_WRITE = "last-write"


@with_admin_client
def top(
    sort: Annotated[
        TopSortOrder, typer.Option(help="Sort by this value, largest first.")
    ] = TopSortOrder.IN_FLIGHT,
    group: Annotated[str | None, typer.Option(metavar="GROUP", help="Only this group.")] = None,
    interval: Annotated[float, typer.Option(metavar="SECONDS", help="Refresh interval.", min=0.1)] = 2.0,
    looks: Annotated[
        int | None,
        typer.Option(
            "-n",
            "--looks",
            metavar="N",
            help="Number of refreshes. Default: 1 if the output is not a terminal, else unlimited.",
            min=1,
        ),
    ] = None,
    *,
    api: "AdminClient",
) -> None:
    """Watch a coordinator or observer. The key q or Ctrl-C quits, s changes the sort order."""
    from rich.console import Console
    from rich.live import Live

    console = Console(highlight=False, markup=False, emoji=False)
    view = _Poller(api, sort, group)
    if not sys.stdout.isatty() or console.is_dumb_terminal:
        _print_table(view.poll(_ROWS_WITHOUT_SCREEN), sort)
        return

    def terminal_rows() -> int:
        return max(1, console.height - _OTHER_LINES)

    # If the first request fails, the error is printed on the normal screen.
    seen, looked = view.poll(terminal_rows()), 1
    with (
        suppress(KeyboardInterrupt),
        open_keyboard() as pressed,
        Live(console=console, screen=True, auto_refresh=False) as live,
    ):
        live.update(_render_screen(seen, view.sort, console.width), refresh=True)
        while (key := pressed.wait(interval)) != "q" and (looks is None or looked < looks):
            if key == "s":
                view.sort = _next_order(view.sort)
            seen = view.poll_or_keep_last(terminal_rows())
            live.update(_render_screen(seen, view.sort, console.width), refresh=True)
            looked += 1


def _next_order(sort: TopSortOrder) -> TopSortOrder:
    orders = list(TopSortOrder)
    return orders[(orders.index(sort) + 1) % len(orders)]


class _PolledValues(NamedTuple):
    """The responses of a refresh; if a later refresh failed, `trouble` is its error."""

    url: str
    health: "Answer"
    problems: "Answer"
    shards: "Sequence[Answer]"
    items: "Sequence[Answer]"
    rate: float | None
    now_ms: int
    trouble: str | None = None


class _Poller:
    """Requests the values for each refresh of the screen.

    The record rate is the growth of the log since the previous refresh, divided by the elapsed time.
    """

    def __init__(self, api: "AdminClient", sort: TopSortOrder, group: str | None) -> None:
        self._api = api
        self.sort = sort
        self._group = group
        self._before: tuple[float, int] | None = None
        self._last: _PolledValues | None = None

    def poll(self, rows: int) -> _PolledValues:
        """Request the values of a refresh and return them. Raises CoordinatorError."""
        from coordinator.process.clock import SystemClock, seconds_since_boot

        health = self._api.get("/healthz")
        problems = self._api.get(
            "/api/v1/signals", only_problems=True, group=self._group, limit=_PROBLEMS_SHOWN
        )
        shards = list(self._api.items("/api/v1/shards"))
        page = self._api.get(
            "/api/v1/share-partitions", group=self._group, sort=self.sort, descending=True, limit=rows
        )
        now_s = seconds_since_boot()
        end = sum(shard["end_log_offset"] for shard in shards)
        before, self._before = self._before, (now_s, end)
        rate = None if before is None else max(0.0, (end - before[1]) / max(now_s - before[0], 0.001))
        self._last = _PolledValues(
            self._api.url, health, problems, shards, page["items"], rate, SystemClock().now_ms()
        )
        return self._last

    def poll_or_keep_last(self, rows: int) -> _PolledValues:
        """Refresh; after an error, return the last values with the error, as the coordinator may restart."""
        from coordinator.errors import CoordinatorError

        try:
            return self.poll(rows)
        except CoordinatorError as error:
            assert self._last is not None, "the first look is `poll`"
            return self._last._replace(trouble=str(error))


class _TableColumn(NamedTuple):
    """A column of the table; `order` is the sort order by this column, if there is one."""

    head: str
    cell: "Callable[[Answer, int], object]"
    order: TopSortOrder | None = None

    def header(self, sort: TopSortOrder) -> str:
        return f"{self.head} v" if self.order is sort else self.head


_GROUP = _TableColumn("GROUP", lambda item, _: item["group"])
_TOPIC = _TableColumn("TOPIC", lambda item, _: item["topic"] or item["topic_id"])
_PARTITION = _TableColumn("PARTITION", lambda item, _: item["partition"])
_START_OFFSET = _TableColumn("START-OFFSET", lambda item, _: format_or_dash(item["start_offset"]))
_LAG = _TableColumn("LAG", lambda item, _: format_or_dash(item["lag"]))
_IN_FLIGHT = _TableColumn("IN-FLIGHT", lambda item, _: item["in_flight_records"], TopSortOrder.IN_FLIGHT)
_DELIVERIES = _TableColumn(
    "DELIVERIES", lambda item, _: item["delivery_count_max"] or "-", TopSortOrder.DELIVERY_COUNT
)
_LAST_WRITE = _TableColumn(
    "LAST-WRITE",
    lambda item, now_ms: format_age(now_ms - item["last_write_ms"]) if item["last_write"] else "-",
    TopSortOrder.LAST_WRITE,
)
_NAMES = (_GROUP, _TOPIC)
_COLUMNS = (*_NAMES, _PARTITION, _START_OFFSET, _LAG, _IN_FLIGHT, _DELIVERIES, _LAST_WRITE)
# The columns that are omitted for long names, in this order; the sort column is kept.
_OPTIONAL_COLUMNS = (_START_OFFSET, _DELIVERIES, _LAST_WRITE, _LAG, _IN_FLIGHT)


def format_age(ms: int) -> str:
    """Format an age, such as "5min ago"."""
    seconds = max(0, round(ms / 1000))
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= size:
            return f"{seconds // size}{unit} ago"
    return f"{seconds}s ago"


def _format_cells(seen: _PolledValues, columns: Sequence[_TableColumn]) -> list[list[str]]:
    return [
        [escape_unprintable(str(column.cell(item, seen.now_ms))) for column in columns] for item in seen.items
    ]


def _print_table(seen: _PolledValues, sort: TopSortOrder) -> None:
    """Print without limiting the width, for files and programs."""
    for line in _header_text(seen).plain.split("\n"):
        print_line(line)
    print_line("")
    print_table([column.header(sort) for column in _COLUMNS], _format_cells(seen, _COLUMNS))


def _render_screen(seen: _PolledValues, sort: TopSortOrder, width: int) -> "RenderableType":
    """Return the screen with the columns that fit its width."""
    from rich.console import Group

    return Group(_header_text(seen), "", _make_table(seen, sort, width))


def _header_text(seen: _PolledValues) -> "Text":
    from rich.text import Text

    health, rate = seen.health, seen.rate
    well = health["status"] == "ready"
    text = Text(f"! {escape_unprintable(seen.trouble)}. Last values:\n" if seen.trouble else "", "red")
    text = Text.assemble(
        text,
        ("share-coordinator ", "bold"),
        f"{health['version']}  {seen.url}  ",
        (health["status"], "bold green" if well else "bold red"),
        "\n",
        f"shards: {', '.join(f'{number} {status.lower()}' for status, number in health['shards'].items())}"
        f" of {len(seen.shards)}   share-partitions: {health['share_partitions']}"
        f"   state batches: {health['state_batches']}   live bytes: {health['live_bytes']}\n",
        f"log records/s: {'-' if rate is None else round(rate)}"
        f"   event loop lag: {health['event_loop_lag_seconds'] * 1000:.1f} ms   log: {health['log']}",
    )
    for reason in health["reasons"]:
        text.append(f"\n! {escape_unprintable(reason)}", "red")
    for item in seen.problems["items"]:
        text.append(f"\n! {item['problem']}: {escape_unprintable(item['message'])}", "red")
    more = seen.problems["total"] - len(seen.problems["items"])
    if more > 0:
        text.append(f"\n! and {more} more groups with a problem", "red")
    return text


def _fit_columns(wanted: "Mapping[_TableColumn, int]", sort: TopSortOrder, width: int) -> list[_TableColumn]:
    """Return the columns that fit. Names are not cut; columns of numbers are omitted instead."""
    columns = list(_COLUMNS)
    for column in _OPTIONAL_COLUMNS:
        named = sum(min(wanted[name], _NAME_WIDTH) for name in _NAMES)
        figures = sum(wanted[each] for each in columns if each not in _NAMES)
        if named + figures + _BETWEEN_COLUMNS * (len(columns) - 1) <= width:
            break
        if column.order is not sort:
            columns.remove(column)
    return columns


def _make_table(seen: _PolledValues, sort: TopSortOrder, width: int) -> "RenderableType":
    from rich.cells import cell_len
    from rich.table import Table
    from rich.text import Text

    heads = [column.header(sort) for column in _COLUMNS]
    widths = [max(map(cell_len, cells)) for cells in zip(heads, *_format_cells(seen, _COLUMNS), strict=True)]
    wanted = dict(zip(_COLUMNS, widths, strict=True))
    columns = _fit_columns(wanted, sort, width)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        if column in _NAMES:
            table.add_column(column.head, overflow="fold")
        else:
            table.add_column(column.header(sort), justify="right", no_wrap=True, min_width=wanted[column])
    for row in _format_cells(seen, columns):
        table.add_row(*map(Text, row))
    return table
