"""`groups list | describe`: the share groups with state in a running coordinator."""

from typing import TYPE_CHECKING, Annotated

import typer

from coordinator.cli.admin_options import CLUSTER_FLAGS, with_admin_client
from coordinator.cli.output import FormOption, OutputForm, print_json, print_line, print_table, print_yaml
from coordinator.cli.settings_flags import ANY_SETTING

if TYPE_CHECKING:
    from coordinator.cli.admin_client import AdminClient, Answer

groups_app = typer.Typer(help="List and describe share groups.", no_args_is_help=True, rich_markup_mode=None)


@groups_app.command("list")
@with_admin_client
def list_groups(
    contains: Annotated[
        str, typer.Option(metavar="TEXT", help="Only groups whose id contains this text.")
    ] = "",
    output: FormOption = OutputForm.TABLE,
    *,
    api: "AdminClient",
) -> None:
    """List the share groups that have state, those with the most severe problems first."""
    from coordinator.observe.signals import Problem

    severities = {each.label: each for each in Problem}
    groups = sorted(
        api.items("/api/v1/groups", contains=contains or None),
        key=lambda group: (-severities[group["problem"]], group["group"]),
    )
    if output is OutputForm.TABLE:
        print_table(
            ("GROUP", "PROBLEM", "LAG", "IN-FLIGHT", "SHARE-PARTITIONS", "LAST-WRITE"),
            [
                (
                    group["group"],
                    "-" if group["problem"] == "none" else group["problem"],
                    format_or_dash(group["lag"]),
                    format_or_dash(group["in_flight_records"]),
                    group["share_partitions"],
                    group["last_write"] or "-",
                )
                for group in groups
            ],
        )
        _warn_of_missing_shards(api)
    else:
        (print_json if output is OutputForm.JSON else print_yaml)(groups)


@groups_app.command(context_settings=ANY_SETTING, epilog=CLUSTER_FLAGS)
@with_admin_client
def describe(
    ctx: typer.Context,
    group: Annotated[str, typer.Argument(metavar="GROUP", help="The group id.", show_default=False)],
    verbose: Annotated[bool, typer.Option("--verbose", help="Show more columns.")] = False,
    output: FormOption = OutputForm.TABLE,
    *,
    api: "AdminClient",
) -> None:
    """Show the share-partitions of a group, like kafka-share-groups.sh --describe with more columns."""
    from coordinator.cli.admin_client import RequestRefused, add_cluster_data, load_cluster_config

    config = load_cluster_config(ctx.args)
    items = list(api.items("/api/v1/share-partitions", group=group))
    if not items:
        _warn_of_missing_shards(api)
        raise RequestRefused(404, f"group {group!r} has no state here")
    add_cluster_data(items, config)
    items.sort(key=lambda item: (item["topic"] or item["topic_id"], item["partition"]))
    if output is OutputForm.TABLE:
        print_table(_VERBOSE if verbose else _HEAD, [_table_row(item, verbose=verbose) for item in items])
        _warn_of_missing_shards(api)
    else:
        (print_json if output is OutputForm.JSON else print_yaml)(items)


_KEY = ("GROUP", "TOPIC", "PARTITION")
_HEAD = (*_KEY, "START-OFFSET", "LAG", "IN-FLIGHT", "MAX-DELIVERY-COUNT", "LAST-WRITE")
_VERBOSE = (
    *_KEY,
    "LEADER-EPOCH",
    "START-OFFSET",
    "LAG",
    "END-OFFSET",
    "IN-FLIGHT",
    "MAX-DELIVERY-COUNT",
    "LAST-WRITE",
    "STATE-EPOCH",
    "STATE-BATCHES",
    "SHARD",
)


def format_or_dash(value: int | None) -> object:
    """Format a number like Kafka's tools: a dash for an unknown value."""
    return "-" if value is None or value < 0 else value


def _table_row(item: "Answer", *, verbose: bool) -> tuple[object, ...]:
    key = (item["group"], item["topic"] or item["topic_id"], item["partition"])
    start = (format_or_dash(item["start_offset"]), format_or_dash(item["lag"]))
    flight = (item["in_flight_records"], item["delivery_count_max"] or "-", item["last_write"] or "-")
    if not verbose:
        return (*key, *start, *flight)
    bookkeeping = (item["state_epoch"], item["state_batches"], item["state_partition"])
    return (*key, item["leader_epoch"], *start, format_or_dash(item["end_offset"]), *flight, *bookkeeping)


def _warn_of_missing_shards(api: "AdminClient") -> None:
    """Print a warning on stderr if shards are not loaded here, with the owners of these shards."""
    shards = list(api.items("/api/v1/shards"))
    missing = [shard for shard in shards if shard["status"] != "ACTIVE"]
    if not missing:
        return
    pages = sorted({shard["owner"]["page"] or shard["owner"]["wire"] for shard in missing if shard["owner"]})
    where = f"; their owners are {', '.join(pages)}" if pages else ""
    print_line(
        f"share-coordinator: {len(missing)} of {len(shards)} shards are not loaded here, so this list is "
        f"incomplete{where}",
        err=True,
    )
