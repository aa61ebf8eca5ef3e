"""`top`: a running coordinator in the terminal, live: its health, and what should be looked at first."""

import sys
from enum import StrEnum
from threading import Event
from typing import TYPE_CHECKING, Annotated

import typer

from coordinator.cli.admin_options import asks
from coordinator.cli.groups_commands import known
from coordinator.visible import written_out

if TYPE_CHECKING:
    from rich.console import RenderableType

    from coordinator.cli.admin_api import AdminApi, Answer

# Lines that the screen needs beside the share-partitions.
_OTHER_LINES = 7
_ROWS_WITHOUT_SCREEN = 20


class TopOrder(StrEnum):
    """Which share-partitions are shown first."""

    IN_FLIGHT = "in-flight"
    DELIVERY_COUNT = "delivery-count"
    LAST_WRITE = "last-write"


@asks
def top(
    sort: Annotated[TopOrder, typer.Option(help="What the first ones have most of.")] = TopOrder.IN_FLIGHT,
    group: Annotated[str | None, typer.Option(metavar="GROUP", help="Only this group.")] = None,
    interval: Annotated[float, typer.Option(metavar="SECONDS", help="How often to look.", min=0.1)] = 2.0,
    looks: Annotated[
        int | None,
        typer.Option(
            "-n",
            "--looks",
            metavar="N",
            help="How often in all; once, if the output is no terminal or a dumb one.",
            min=1,
        ),
    ] = None,
    *,
    api: "AdminApi",
) -> None:
    """Watch a coordinator in the terminal until Ctrl-C."""
    from rich.console import Console
    from rich.live import Live

    console = Console(highlight=False, markup=False, emoji=False)
    view = _View(api, sort, group)
    if not sys.stdout.isatty() or console.is_dumb_terminal:
        console.print(view.look(_ROWS_WITHOUT_SCREEN))
        return

    def rows() -> int:
        return max(1, console.height - _OTHER_LINES)

    # Whoever cannot look at all is told on the screen that stays.
    shown, looked, pause = view.look(rows()), 1, Event()
    with Live(console=console, screen=True, auto_refresh=False) as live:
        live.update(shown, refresh=True)
        pause.wait(interval)
        while looks is None or looked < looks:
            live.update(view.look_again(rows()), refresh=True)
            looked += 1
            pause.wait(interval)


_FIGURES = (
    ("PARTITION", None),
    ("START-OFFSET", None),
    ("LAG", None),
    ("IN-FLIGHT", TopOrder.IN_FLIGHT),
    ("DELIVERIES", TopOrder.DELIVERY_COUNT),
    ("LAST-WRITE", TopOrder.LAST_WRITE),
)
# Of a time in ISO 8601.
_TIME_OF_DAY = slice(11, 19)


class _View:
    """What was seen at one look after the other; the log's growth between two of them is a rate."""

    def __init__(self, api: "AdminApi", sort: TopOrder, group: str | None) -> None:
        self._api = api
        self._sort = sort
        self._group = group
        self._before: tuple[float, int] | None = None
        self._last: RenderableType = ""

    def look(self, rows: int) -> "RenderableType":
        """Ask, and draw what was answered."""
        from rich.console import Group

        from coordinator.clock import seconds_since_boot

        health = self._api.get("/healthz")
        shards = list(self._api.items("/api/v1/shards"))
        page = self._api.get(
            "/api/v1/share-partitions", group=self._group, sort=self._sort, descending=True, limit=rows
        )
        now_s = seconds_since_boot()
        end = sum(shard["end_log_offset"] for shard in shards)
        before, self._before = self._before, (now_s, end)
        rate = None if before is None else max(0.0, (end - before[1]) / max(now_s - before[0], 0.001))
        self._last = Group(_head(self._api.url, health, shards, rate), "", _table(page, self._sort))
        return self._last

    def look_again(self, rows: int) -> "RenderableType":
        """Look; if that fails, say why, above what was seen last: a coordinator that restarts comes back."""
        from rich.console import Group
        from rich.text import Text

        from coordinator.errors import CoordinatorError

        try:
            return self.look(rows)
        except CoordinatorError as error:
            return Group(Text(f"! {written_out(str(error))}; as it was:", "red"), self._last)


def _head(url: str, health: "Answer", shards: "list[Answer]", rate: float | None) -> "RenderableType":
    from rich.text import Text

    well = health["status"] == "ready"
    text = Text.assemble(
        ("share-coordinator ", "bold"),
        f"{health['version']}  {url}  ",
        (health["status"], "bold green" if well else "bold red"),
        "\n",
        f"shards: {', '.join(f'{number} {status.lower()}' for status, number in health['shards'].items())}"
        f" of {len(shards)}   share-partitions: {health['share_partitions']}"
        f"   state batches: {health['state_batches']}   live bytes: {health['live_bytes']}\n",
        f"log records/s: {'-' if rate is None else round(rate)}"
        f"   event loop lag: {health['event_loop_lag_seconds'] * 1000:.1f} ms   log: {health['log']}",
    )
    for reason in health["reasons"]:
        text.append(f"\n! {written_out(reason)}", "red")
    return text


def _table(page: "Answer", sort: TopOrder) -> "RenderableType":
    from rich.table import Table
    from rich.text import Text

    rows = [
        (
            str(item["partition"]),
            str(known(item["start_offset"])),
            str(known(item["lag"])),
            str(item["in_flight_records"]),
            str(item["delivery_count_max"] or "-"),
            (item["last_write"] or "-")[_TIME_OF_DAY],
        )
        for item in page["items"]
    ]
    table = Table(box=None, pad_edge=False, header_style="bold", expand=True)
    for name in ("GROUP", "TOPIC"):
        table.add_column(name, overflow="ellipsis", no_wrap=True, ratio=1)
    for number, (name, order) in enumerate(_FIGURES):
        head = f"{name} v" if order is sort else name
        # Names give way to figures where there is no room for both.
        width = max([len(head), *(len(row[number]) for row in rows)])
        table.add_column(head, justify="right", no_wrap=True, min_width=width)
    for item, row in zip(page["items"], rows, strict=True):
        table.add_row(Text(written_out(item["group"])), Text(item["topic"] or item["topic_id"]), *row)
    return table
