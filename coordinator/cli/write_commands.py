"""`snapshot`, `prune` and `hand-over`: run a coordinator's periodic work now.

Each is a dry run unless `--execute` is given. The coordinator authorizes the request and writes it to its
audit log.
"""

from typing import TYPE_CHECKING, Annotated

import typer

from coordinator.cli.admin_options import ExecuteOption, with_admin_client
from coordinator.cli.output import FormOption, OutputForm, print_json, print_line, print_table, print_yaml
from coordinator.cli.state_commands import find_topic_id

if TYPE_CHECKING:
    from coordinator.cli.admin_client import AdminClient, Answer


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
    output: FormOption = OutputForm.TABLE,
    *,
    api: "AdminClient",
) -> None:
    """Write snapshots of a share-partition, a group or a shard, so that older records can be pruned."""
    from coordinator.errors import ConfigError

    if (group is None) == (shard is None) or (topic is None) != (partition is None):
        raise ConfigError("snapshot", "", "given GROUP, or GROUP TOPIC PARTITION, or --shard SHARD")
    topic_id = None
    if group is not None and topic is not None:
        topic_id = find_topic_id(api, group, topic)
    order = {"shard": shard, "group": group, "topic": topic_id, "partition": partition, "execute": execute}
    done = api.post("/api/v1/snapshots", order)
    if output is OutputForm.TABLE:
        head = ("SHARE-PARTITIONS", "UPDATES-SINCE-SNAPSHOT", "SNAPSHOT-BYTES")
        print_table(head, [(done["share_partitions"], done["updates"], done["bytes"])])
        if done["missing_shards"]:
            missing = len(done["missing_shards"])
            print_line(
                f"share-coordinator: {missing} shards are not loaded here; their state is not included",
                err=True,
            )
    _print_result(done, output)


@with_admin_client
def prune(
    shard: Annotated[
        int | None,
        typer.Argument(metavar="SHARD", min=0, help="The shard. Default: all shards of the coordinator."),
    ] = None,
    execute: ExecuteOption = False,
    output: FormOption = OutputForm.TABLE,
    *,
    api: "AdminClient",
) -> None:
    """Prune the records that are no longer needed."""
    done = api.post("/api/v1/prunes", {"shard": shard, "execute": execute})
    if output is OutputForm.TABLE:
        print_table(
            ("SHARD", "LOG-START-OFFSET", "NEW-LOG-START-OFFSET", "RECORDS"),
            [
                (
                    each["state_partition"],
                    each["start_log_offset"],
                    each["start_log_offset"] + each["records"],
                    each["records"],
                )
                for each in done["shards"]
            ],
        )
    _print_result(done, output)


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
    output: FormOption = OutputForm.TABLE,
    *,
    api: "AdminClient",
) -> None:
    """Hand a shard over to another coordinator of the group, without loss.

    The shard stays there until the members of the group change, or until the group moves shards closer to the
    leaders of their state partitions. If the balance requires it, another shard moves back.
    """
    done = api.post("/api/v1/hand-overs", {"shard": shard, "to": to, "execute": execute})
    if output is OutputForm.TABLE:
        giver, taker = (done[role]["wire"] if done[role] else "-" for role in ("giver", "taker"))
        print_table(("SHARD", "OWNER", "NEW-OWNER"), [(shard, giver, taker if execute else to or "-")])
        print_line(done["outcome"])
    _print_result(done, output)


def _print_result(done: "Answer", output: OutputForm) -> None:
    if output is OutputForm.TABLE:
        print_dry_run_note(executed=done["executed"])
    else:
        (print_json if output is OutputForm.JSON else print_yaml)(done)


def print_dry_run_note(*, executed: bool) -> None:
    """Print a note on stderr if this was a dry run."""
    if not executed:
        print_line("share-coordinator: dry run: nothing was changed. Repeat with --execute.", err=True)
