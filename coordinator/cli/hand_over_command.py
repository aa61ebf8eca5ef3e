"""`hand-over`: move a shard to another coordinator.

The command is a dry run unless `--execute` is given. The coordinator authorizes the request and writes it to
its audit log.
"""

from typing import TYPE_CHECKING, Annotated

import typer

from coordinator.cli.admin_options import ExecuteOption, with_admin_client
from coordinator.cli.output import Columns, Output, OutputOption, print_items, print_json, print_line

if TYPE_CHECKING:
    from coordinator.cli.admin_client import AdminClient


_HAND_OVER_COLUMNS: Columns = {"SHARD": "shard", "OWNER": "owner", "NEW-OWNER": "new_owner"}


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

    The shard stays at its new owner until the members of the group change, or until the group moves shards
    closer to the leaders of their state partitions. To keep the balance, another shard may move back.
    """
    done = api.post("/api/v1/hand-overs", {"shard": shard, "to": to, "execute": execute})
    if output is Output.JSON:
        print_json(done)
        return
    moved = {
        "shard": shard,
        "owner": done["previous_owner"] and done["previous_owner"]["wire"],
        "new_owner": done["new_owner"]["wire"] if done["new_owner"] else None if execute else to,
    }
    print_items([moved], _HAND_OVER_COLUMNS, output)
    if not execute:
        print_line("share-coordinator: dry run: nothing was changed. Repeat with --execute.", err=True)
    print_line(done["outcome"])
