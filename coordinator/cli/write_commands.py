"""`snapshot`, `prune` and `hand-over`: run a coordinator's periodic work now.

Each of these commands is a dry run unless `--execute` is given. The coordinator authorizes the request and
writes it to its audit log.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from coordinator.cli.admin_options import ExecuteOption, with_admin_client
from coordinator.cli.output import Columns, Output, OutputOption, print_items, print_json, print_line

if TYPE_CHECKING:
    from coordinator.cli.admin_client import AdminClient, Answer


_SNAPSHOT_COLUMNS: Columns = {
    "SHARE-PARTITIONS": "share_partitions",
    "UPDATES-SINCE-SNAPSHOT": "updates",
    "SNAPSHOT-BYTES": "bytes",
}
_PRUNE_COLUMNS: Columns = {
    "SHARD": "state_partition",
    "LOG-START-OFFSET": "start_log_offset",
    "NEW-LOG-START-OFFSET": lambda shard: shard["start_log_offset"] + shard["records"],
    "RECORDS": "records",
}
_HAND_OVER_COLUMNS: Columns = {"SHARD": "shard", "OWNER": "owner", "NEW-OWNER": "new_owner"}


@with_admin_client
def snapshot(
    group: Annotated[str | None, typer.Argument(metavar="GROUP", help="The group id.")] = None,
    topic: Annotated[str | None, typer.Argument(metavar="TOPIC", help="The topic name or id.")] = None,
    partition: Annotated[
        int | None, typer.Argument(metavar="PARTITION", min=0, help="The partition number.")
    ] = None,
    shard: Annotated[
        int | None,
        typer.Option(metavar="N", min=0, help="All share-partitions of this shard, instead of a group."),
    ] = None,
    execute: ExecuteOption = False,
    output: OutputOption = Output.TABLE,
    *,
    api: "AdminClient",
) -> None:
    """Write snapshots of a share-partition, a group or a shard, so that older records can be pruned."""
    from coordinator.errors import ConfigError

    if (group is None) == (shard is None) or (topic is None) != (partition is None):
        raise ConfigError("snapshot", "", "given GROUP, or GROUP TOPIC PARTITION, or --shard SHARD")
    order = {"shard": shard, "group": group, "topic": topic, "partition": partition, "execute": execute}
    done = api.post("/api/v1/snapshots", order)
    _print_result(done, [done], _SNAPSHOT_COLUMNS, output)
    if done["missing_shards"] and output is Output.TABLE:
        print_line(
            f"share-coordinator: {len(done['missing_shards'])} shards are not loaded here; "
            "their state is not included",
            err=True,
        )


@with_admin_client
def prune(
    shard: Annotated[
        int | None,
        typer.Argument(metavar="SHARD", min=0, help="The shard. Default: all shards of the coordinator."),
    ] = None,
    execute: ExecuteOption = False,
    output: OutputOption = Output.TABLE,
    *,
    api: "AdminClient",
) -> None:
    """Prune the records that are no longer needed."""
    done = api.post("/api/v1/prunes", {"shard": shard, "execute": execute})
    _print_result(done, done["shards"], _PRUNE_COLUMNS, output)


@with_admin_client
def hand_over(
    shard: Annotated[int, typer.Argument(metavar="SHARD", min=0, help="The shard.")],
    to: Annotated[
        str | None,
        typer.Option(
            metavar="REPLICA", help="A coordinator, as in the OWNER column of shards. Default: any other."
        ),
    ] = None,
    execute: ExecuteOption = False,
    output: OutputOption = Output.TABLE,
    *,
    api: "AdminClient",
) -> None:
    """Hand a shard over to another coordinator of the group, without loss.

    The shard stays there until the members of the group change, or until the group moves shards closer to the
    leaders of their state partitions. To keep the balance, another shard may move back.
    """
    done = api.post("/api/v1/hand-overs", {"shard": shard, "to": to, "execute": execute})
    target = done["new_owner"]["wire"] if execute and done["new_owner"] else None if execute else to
    moved = {
        "shard": shard,
        "owner": done["previous_owner"]["wire"] if done["previous_owner"] else None,
        "new_owner": target,
    }
    _print_result(done, [moved], _HAND_OVER_COLUMNS, output)
    if output is Output.TABLE:
        print_line(done["outcome"])


def _print_result(done: "Answer", items: "Sequence[Answer]", columns: Columns, output: Output) -> None:
    """Print a response, or its items as a table and a note if this was a dry run."""
    if output is Output.JSON:
        print_json(done)
        return
    print_items(items, columns, output)
    if not done["executed"]:
        print_line("share-coordinator: dry run: nothing was changed. Repeat with --execute.", err=True)
