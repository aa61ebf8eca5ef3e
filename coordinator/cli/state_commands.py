"""`state show | history`: the state of one share-partition, and what the state log contains about it."""

from typing import TYPE_CHECKING, Annotated

import typer

from coordinator.cli.admin_options import with_admin_client
from coordinator.cli.groups_commands import VERBOSE_COLUMNS
from coordinator.cli.output import Columns, Output, OutputOption, print_items, print_json, print_line

if TYPE_CHECKING:
    from coordinator.cli.admin_client import AdminClient, Answer

state_app = typer.Typer(
    help="Show the state of a share-partition.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

Group = Annotated[str, typer.Argument(metavar="GROUP", help="The group id.", show_default=False)]
Topic = Annotated[
    str, typer.Argument(metavar="TOPIC", help="The topic: its name or its id.", show_default=False)
]
Partition = Annotated[
    int, typer.Argument(metavar="PARTITION", help="The partition.", min=0, show_default=False)
]

_STATE_COLUMNS: Columns = {
    head: VERBOSE_COLUMNS[head]
    for head in (
        "GROUP",
        "TOPIC",
        "PARTITION",
        "LEADER-EPOCH",
        "START-OFFSET",
        "LAG",
        "END-OFFSET",
        "IN-FLIGHT",
    )
}
_EVENT_FIELDS = ("log_offset", "time", "record", "owner_epoch", "leader_epoch", "start_offset", "what")
_EVENT_COLUMNS: Columns = {field.upper().replace("_", "-"): field for field in _EVENT_FIELDS}
_RANGE_FIELDS = ("first_offset", "last_offset", "records", "delivery_state", "delivery_count")
_RANGE_COLUMNS: Columns = {field.upper().replace("_", "-"): field for field in _RANGE_FIELDS}

_RUNS = 10_000


@state_app.command()
@with_admin_client
def show(
    group: Group,
    topic: Topic,
    partition: Partition,
    output: OutputOption = Output.TABLE,
    *,
    api: "AdminClient",
) -> None:
    """Show the state of a share-partition, with every offset range that has a delivery state."""
    detail = _read_detail(api, group, topic, partition)
    if output is Output.JSON:
        print_json(detail)
    else:
        _print_state(detail)


@state_app.command()
@with_admin_client
def history(
    group: Group,
    topic: Topic,
    partition: Partition,
    offset: Annotated[
        int | None,
        typer.Argument(metavar="OFFSET", help="Only events of this record.", min=0, show_default=False),
    ] = None,
    limit: Annotated[
        int, typer.Option(metavar="N", help="Number of events, the latest first.", min=1, max=1_000)
    ] = 100,
    before: Annotated[
        int | None, typer.Option(metavar="LOG-OFFSET", help="Only events before this log offset.", min=0)
    ] = None,
    output: OutputOption = Output.TABLE,
    *,
    api: "AdminClient",
) -> None:
    """Show the delivery history of a share-partition or of one record, the latest event first."""
    found = api.get(
        "/api/v1/delivery-history",
        **{"group": group, "topic": topic, "partition": partition},
        **{"record_offset": offset, "before": before, "limit": limit},
    )
    if output is Output.JSON:
        print_json(found)
        return
    print_items(found["events"], _EVENT_COLUMNS, output)
    if found["next"] is not None:
        print_line(f"earlier events: --before {found['next']}")
    if found["pruned"]:
        print_line(f"share-coordinator: {found['pruned']}", err=True)
    print_line(f"now: {found['summary']}")


def _read_detail(api: "AdminClient", group: str, topic: str, partition: int) -> "Answer":
    """Return the whole state: all offset ranges, which may take several requests."""
    key = {"group": group, "topic": topic, "partition": partition, "limit": _RUNS}
    detail = api.get("/api/v1/share-partition", **key)
    runs = detail["in_flight"]["items"]
    while len(runs) < detail["in_flight"]["total"]:
        more = api.get("/api/v1/share-partition", **key, offset=len(runs))["in_flight"]["items"]
        if not more:
            break
        runs += more
    detail["in_flight"] = runs
    return detail


def _print_state(detail: "Answer") -> None:
    oldest = detail["oldest_unfinished"]
    print_items([detail], _STATE_COLUMNS, Output.TABLE)
    typer.echo()
    for name, value in (
        ("oldest incomplete record", "none known" if oldest is None else oldest["offset"]),
        ("by delivery state", _format_counts(detail["records_by_state"])),
        ("last write", detail["last_write"] or "-"),
        ("state epoch", detail["state_epoch"]),
        ("snapshot epoch", f"{detail['snapshot_epoch']}, updates since: {detail['updates_since_snapshot']}"),
        ("shard", detail["state_partition"]),
    ):
        print_line(f"{name + ':':26}{value}")
    if detail["unreadable"]:
        print_line(f"share-coordinator: this state cannot be served: {detail['unreadable']}", err=True)
    if detail["in_flight"]:
        typer.echo()
        print_items(detail["in_flight"], _RANGE_COLUMNS, Output.TABLE)


def _format_counts(records_by_state: dict[str, int]) -> str:
    return (
        ", ".join(f"{state} {records}" for state, records in records_by_state.items()) or "nothing in flight"
    )
