"""`top`: show the health of a running coordinator and its busiest share-partitions, periodically."""

import sys
from collections.abc import Iterator
from contextlib import suppress
from enum import StrEnum
from threading import Event
from typing import TYPE_CHECKING, Annotated

import typer

from coordinator.cli.admin_options import with_admin_client
from coordinator.cli.output import Columns, format_table, make_row
from coordinator.cli.state_commands import KEY_COLUMNS
from coordinator.printable import escape_unprintable

if TYPE_CHECKING:
    from coordinator.cli.admin_client import AdminClient, Answer

# Number of groups with a problem that are shown; those with the most severe problems come first.
_PROBLEMS_SHOWN = 3
# Number of screen lines that do not show share-partitions.
_OTHER_LINES = 6 + _PROBLEMS_SHOWN
_ROWS_WITHOUT_SCREEN = 20


class TopSortOrder(StrEnum):
    """The sort order of share-partitions."""

    IN_FLIGHT = "in-flight"
    DELIVERY_COUNT = "delivery-count"
    LAST_WRITE = "last-write"


_COLUMNS: Columns = {
    **KEY_COLUMNS,
    "LAG": "lag",
    "IN-FLIGHT": "in_flight_records",
    "DELIVERIES": lambda item: item["delivery_count_max"] or None,
    "LAST-WRITE": "last_write",
}
_SORT_COLUMNS = {
    TopSortOrder.IN_FLIGHT: "IN-FLIGHT",
    TopSortOrder.DELIVERY_COUNT: "DELIVERIES",
    TopSortOrder.LAST_WRITE: "LAST-WRITE",
}


@with_admin_client
def top(
    sort: Annotated[
        TopSortOrder, typer.Option(help="Sort by this value, largest first.")
    ] = TopSortOrder.IN_FLIGHT,
    group: Annotated[str | None, typer.Option(metavar="GROUP", help="Only this group.")] = None,
    interval: Annotated[
        float, typer.Option(metavar="SECONDS", help="Refresh interval.", min=0.1, max=86_400)
    ] = 2.0,
    refreshes: Annotated[
        int | None,
        typer.Option(
            "-n",
            "--refreshes",
            metavar="N",
            help="Number of refreshes. Default: 1 if the output is not a terminal, else unlimited.",
            min=1,
        ),
    ] = None,
    *,
    api: "AdminClient",
) -> None:
    """Watch a coordinator or observer until Ctrl-C."""
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False, markup=False, emoji=False)
    view = _Poller(api, sort, group)
    if not sys.stdout.isatty() or console.is_dumb_terminal:
        typer.echo(view.poll(_ROWS_WITHOUT_SCREEN))
        for _ in range(1, refreshes or 1):
            Event().wait(interval)
            typer.echo(f"\n{view.poll(_ROWS_WITHOUT_SCREEN)}")
        return
    # If the first request fails, the error is printed on the normal screen.
    text, shown = view.poll(max(1, console.height - _OTHER_LINES)), 1
    with suppress(KeyboardInterrupt), console.screen() as screen:
        while True:
            screen.update(Text(text, no_wrap=True, overflow="ellipsis"))
            if shown == refreshes:
                return
            Event().wait(interval)
            text, shown = view.poll_or_keep_last(max(1, console.height - _OTHER_LINES)), shown + 1


class _Poller:
    """Requests and formats the values for each refresh of the screen.

    The record rate is the growth of the log since the previous refresh, divided by the elapsed time.
    """

    def __init__(self, api: "AdminClient", sort: TopSortOrder, group: str | None) -> None:
        self._api = api
        self._sort = sort
        self._group = group
        self._before: tuple[float, int] | None = None
        self._last = ""

    def poll(self, rows: int) -> str:
        """Return the lines of a refresh with this number of share-partitions. Raises CoordinatorError."""
        from coordinator.process.clock import seconds_since_boot

        health = self._api.get("/healthz")
        problems = self._api.get(
            "/api/v1/signals", only_problems=True, group=self._group, limit=_PROBLEMS_SHOWN
        )
        end = sum(shard["end_log_offset"] for shard in self._api.list_items("/api/v1/shards"))
        page = self._api.get(
            "/api/v1/share-partitions", group=self._group, sort=self._sort, descending=True, limit=rows
        )
        now_s = seconds_since_boot()
        before, self._before = self._before, (now_s, end)
        rate = None if before is None else max(0.0, (end - before[1]) / max(now_s - before[0], 0.001))
        heads = [f"{head} v" if head == _SORT_COLUMNS[self._sort] else head for head in _COLUMNS]
        table = format_table(heads, (make_row(item, _COLUMNS) for item in page["items"]))
        header = map(escape_unprintable, self._header_lines(health, problems, rate))
        self._last = "\n".join([*header, "", *table])
        return self._last

    def poll_or_keep_last(self, rows: int) -> str:
        """Refresh; after an error, return the last lines with the error, as the coordinator may restart."""
        from coordinator.errors import CoordinatorError

        try:
            return self.poll(rows)
        except CoordinatorError as error:
            return f"! {escape_unprintable(str(error))}. Last values:\n{self._last}"

    def _header_lines(self, health: "Answer", problems: "Answer", rate: float | None) -> Iterator[str]:
        shards = ", ".join(f"{number} {status.lower()}" for status, number in health["shards"].items())
        yield f"share-coordinator {health['version']}  {self._api.url}  {health['status']}"
        yield (
            f"shards: {shards}   share-partitions: {health['share_partitions']}   "
            f"state batches: {health['state_batches']}   live bytes: {health['live_bytes']}"
        )
        yield (
            f"log records/s: {'-' if rate is None else round(rate)}   "
            f"event loop lag: {health['event_loop_lag_seconds'] * 1000:.1f} ms   log: {health['log']}"
        )
        for reason in health["reasons"]:
            yield f"! {reason}"
        for item in problems["items"]:
            yield f"! {item['problem']}: {item['message']}"
        more = problems["total"] - len(problems["items"])
        if more > 0:
            yield f"! and {more} more groups with a problem"
