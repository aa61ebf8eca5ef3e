"""Commands that show the state of a running coordinator: `groups`, `state` and `shards`."""

from typing import TYPE_CHECKING, Annotated

import typer

from coordinator.cli.admin_options import with_admin_client
from coordinator.cli.output import Column, Columns, Output, OutputOption, print_items, print_json, print_line

if TYPE_CHECKING:
    from coordinator.cli.admin_client import AdminClient, Answer


groups_app = typer.Typer(help="List and describe share groups.", no_args_is_help=True, rich_markup_mode=None)

_GROUP_COLUMNS: Columns = {
    "GROUP": "group",
    "PROBLEM": lambda group: None if group["problem"] == "none" else group["problem"],
    "LAG": "lag",
    "IN-FLIGHT": "in_flight_records",
    "SHARE-PARTITIONS": "share_partitions",
    "LAST-WRITE": "last_write",
}
KEY_COLUMNS: Columns = {
    "GROUP": "group",
    "TOPIC": lambda item: item["topic"] or item["topic_id"],
    "PARTITION": "partition",
}
_PROGRESS_COLUMNS: Columns = {
    "IN-FLIGHT": "in_flight_records",
    "MAX-DELIVERY-COUNT": lambda item: item["delivery_count_max"] or None,
    "LAST-WRITE": "last_write",
}
_DESCRIBE_COLUMNS: Columns = {
    **KEY_COLUMNS,
    "START-OFFSET": "start_offset",
    "LAG": "lag",
    **_PROGRESS_COLUMNS,
}
VERBOSE_COLUMNS: Columns = {
    **KEY_COLUMNS,
    "LEADER-EPOCH": "leader_epoch",
    "START-OFFSET": "start_offset",
    "LAG": "lag",
    "END-OFFSET": "end_offset",
    **_PROGRESS_COLUMNS,
    "STATE-EPOCH": "state_epoch",
    "STATE-BATCHES": "state_batches",
    "SHARD": "state_partition",
}


def _make_loaded_shard_column(field: str) -> Column:
    return lambda shard: None if shard["status"] == "CLOSED" else shard[field]


_LOADED_SHARD_FIELDS = {
    "OWNER-EPOCH": "owner_epoch",
    "SHARE-PARTITIONS": "share_partitions",
    "STATE-BATCHES": "state_batches",
    "LIVE-BYTES": "live_bytes",
    "LOG-START-OFFSET": "start_log_offset",
    "LOG-END-OFFSET": "end_log_offset",
    "PRUNE-LAG": "prune_lag",
    "LOAD-MS": "load_ms",
}
_SHARD_COLUMNS: Columns = {
    "SHARD": "state_partition",
    "STATUS": "status",
    "OWNER": lambda shard: shard["owner"]["wire"] if shard["owner"] else None,
    **{head: _make_loaded_shard_column(field) for head, field in _LOADED_SHARD_FIELDS.items()},
}


@groups_app.command("list")
@with_admin_client
def list_groups(
    contains: Annotated[
        str, typer.Option(metavar="TEXT", help="Only groups whose id contains this text.")
    ] = "",
    output: OutputOption = Output.TABLE,
    *,
    api: "AdminClient",
) -> None:
    """List the share groups that have state, those with the most severe problems first."""
    from coordinator.observe.signals import Problem

    severities = {each.label: each for each in Problem}
    groups = sorted(
        api.list_items("/api/v1/groups", contains=contains or None),
        # A coordinator of another release may have further problems.
        key=lambda group: (-severities.get(group["problem"], max(Problem)), group["group"]),
    )
    warnings = _describe_unloaded_shards(api)
    print_items(groups, _GROUP_COLUMNS, output)
    _print_warnings(warnings)


@groups_app.command()
@with_admin_client
def describe(
    group: Annotated[str, typer.Argument(metavar="GROUP", help="The group id.", show_default=False)],
    verbose: Annotated[bool, typer.Option("--verbose", help="Show more columns.")] = False,
    output: OutputOption = Output.TABLE,
    *,
    api: "AdminClient",
) -> None:
    """Show the share-partitions of a group, like kafka-share-groups.sh --describe with more columns."""
    from coordinator.cli.admin_client import RequestRefused

    items = list(api.list_items("/api/v1/share-partitions", group=group))
    warnings = _describe_unloaded_shards(api)
    if not items:
        raise RequestRefused(404, "; ".join((f"group {group!r} has no state here", *warnings)))
    items.sort(key=lambda item: (item["topic"] or item["topic_id"], item["partition"]))
    print_items(items, VERBOSE_COLUMNS if verbose else _DESCRIBE_COLUMNS, output)
    _print_warnings(warnings)


@with_admin_client
def shards(output: OutputOption = Output.TABLE, *, api: "AdminClient") -> None:
    """List the shards of a running coordinator with owners and sizes."""
    items = list(api.list_items("/api/v1/shards"))
    print_items(items, _SHARD_COLUMNS, output)
    for item in items:
        if item["failure"] and output is Output.TABLE:
            print_line(f"shard {item['state_partition']}: {item['failure']}", err=True)


def _print_warnings(warnings: list[str]) -> None:
    for warning in warnings:
        print_line(f"share-coordinator: {warning}", err=True)


def _describe_unloaded_shards(api: "AdminClient") -> list[str]:
    """Return why the server is not ready, and the owners of shards that are not loaded here."""
    warnings: list[str] = api.get("/healthz")["reasons"]
    shards = list(api.list_items("/api/v1/shards"))
    missing: list[Answer] = [shard for shard in shards if shard["status"] != "ACTIVE"]
    if not missing:
        return warnings
    pages = sorted({shard["owner"]["page"] or shard["owner"]["wire"] for shard in missing if shard["owner"]})
    where = f"; their owners are {', '.join(pages)}" if pages else ""
    return [
        *warnings,
        f"{len(missing)} of {len(shards)} shards are not loaded here, so this list is incomplete{where}",
    ]


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

_RANGES_PER_REQUEST = 10_000


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
    detail = _read_whole_share_partition(api, group, topic, partition)
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


def _read_whole_share_partition(api: "AdminClient", group: str, topic: str, partition: int) -> "Answer":
    """Return the whole state: all offset ranges, which may take several requests."""
    key = {"group": group, "topic": topic, "partition": partition, "limit": _RANGES_PER_REQUEST}
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
    oldest = detail["oldest_incomplete"]
    print_items([detail], _STATE_COLUMNS, Output.TABLE)
    typer.echo()
    for name, value in (
        ("oldest incomplete record", "none known" if oldest is None else oldest["offset"]),
        ("by delivery state", _format_record_counts(detail["records_by_state"])),
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


def _format_record_counts(records_by_state: dict[str, int]) -> str:
    return (
        ", ".join(f"{state} {records}" for state, records in records_by_state.items()) or "nothing in flight"
    )
