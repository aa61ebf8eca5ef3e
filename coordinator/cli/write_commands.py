"""`snapshot`, `prune` and `hand-over`: what a running coordinator does by itself, done now.

Each is a dry run unless `--execute` is given. The coordinator decides whether we may, and notes who did what
in its log.
"""

from typing import TYPE_CHECKING, Annotated

import typer

from coordinator.cli.admin_options import ExecuteOption, with_admin_client
from coordinator.cli.output import Form, FormOption, print_json, print_line, print_table, print_yaml
from coordinator.cli.state_commands import topic_id_of

if TYPE_CHECKING:
    from coordinator.cli.admin_client import AdminClient, Answer


@with_admin_client
def snapshot(
    group: Annotated[str | None, typer.Argument(metavar="GROUP", help="The group id.")] = None,
    topic: Annotated[str | None, typer.Argument(metavar="TOPIC", help="Its name or its id.")] = None,
    partition: Annotated[int | None, typer.Argument(metavar="PARTITION", min=0, help="Its number.")] = None,
    shard: Annotated[
        int | None, typer.Option(metavar="N", min=0, help="All of this shard, in place of a group.")
    ] = None,
    execute: ExecuteOption = False,
    output: FormOption = Form.TABLE,
    *,
    api: "AdminClient",
) -> None:
    """Write snapshots of a share-partition, a group or a shard, so that what is older can be pruned."""
    from coordinator.errors import ConfigError

    if (group is None) == (shard is None) or (topic is None) != (partition is None):
        raise ConfigError("snapshot", "", "given GROUP, or GROUP TOPIC PARTITION, or --shard SHARD")
    topic_id = None
    if group is not None and topic is not None:
        topic_id = topic_id_of(api, group, topic)
    order = {"shard": shard, "group": group, "topic": topic_id, "partition": partition, "execute": execute}
    done = api.post("/api/v1/snapshots", order)
    if output is Form.TABLE:
        head = ("SHARE-PARTITIONS", "UPDATES-SINCE-SNAPSHOT", "SNAPSHOT-BYTES")
        print_table(head, [(done["share_partitions"], done["updates"], done["bytes"])])
        if done["missing_shards"]:
            missing = len(done["missing_shards"])
            print_line(f"share-coordinator: {missing} shards are not here, and left out", err=True)
    _end(done, output)


@with_admin_client
def prune(
    shard: Annotated[int | None, typer.Argument(metavar="SHARD", min=0, help="All that are here.")] = None,
    execute: ExecuteOption = False,
    output: FormOption = Form.TABLE,
    *,
    api: "AdminClient",
) -> None:
    """Have the log let go of the records that are not needed any more."""
    done = api.post("/api/v1/prunes", {"shard": shard, "execute": execute})
    if output is Form.TABLE:
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
    _end(done, output)


@with_admin_client
def hand_over(
    shard: Annotated[int, typer.Argument(metavar="SHARD", min=0, help="The shard.")],
    to: Annotated[
        str | None,
        typer.Option(metavar="REPLICA", help="As the OWNER of shards is written. Otherwise any other."),
    ] = None,
    execute: ExecuteOption = False,
    output: FormOption = Form.TABLE,
    *,
    api: "AdminClient",
) -> None:
    """Have a shard given to another coordinator of the group, without a loss.

    It stays there until coordinators come or go, or the group brings shards nearer to the leaders of their
    partitions. Where the balance asks for it, another shard comes back in return.
    """
    done = api.post("/api/v1/hand-overs", {"shard": shard, "to": to, "execute": execute})
    if output is Form.TABLE:
        giver, taker = (done[role]["wire"] if done[role] else "-" for role in ("giver", "taker"))
        print_table(("SHARD", "OWNER", "NEW-OWNER"), [(shard, giver, taker if execute else to or "-")])
        print_line(done["outcome"])
    _end(done, output)


def _end(done: "Answer", output: Form) -> None:
    if output is Form.TABLE:
        print_dry_run_note(executed=done["executed"])
    else:
        (print_json if output is Form.JSON else print_yaml)(done)


def print_dry_run_note(*, executed: bool) -> None:
    """Say, where a program does not read it, that nothing was done."""
    if not executed:
        print_line("share-coordinator: a dry run, nothing was changed; --execute does it", err=True)
