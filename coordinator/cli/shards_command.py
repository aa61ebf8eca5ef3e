"""`shards`: the owner and status of each shard."""

from typing import TYPE_CHECKING

from coordinator.cli.admin_options import with_admin_client
from coordinator.cli.output import FormOption, OutputForm, print_json, print_line, print_table, print_yaml

if TYPE_CHECKING:
    from coordinator.cli.admin_client import AdminClient, Answer

_HEAD = (
    "SHARD",
    "STATUS",
    "OWNER",
    "OWNER-EPOCH",
    "SHARE-PARTITIONS",
    "STATE-BATCHES",
    "LIVE-BYTES",
    "LOG-START-OFFSET",
    "LOG-END-OFFSET",
    "PRUNE-LAG",
    "LOAD-MS",
)


@with_admin_client
def shards(output: FormOption = OutputForm.TABLE, *, api: "AdminClient") -> None:
    """List the shards of a running coordinator with their owners and sizes."""
    items = list(api.items("/api/v1/shards"))
    if output is OutputForm.TABLE:
        print_table(_HEAD, map(_table_row, items))
    else:
        (print_json if output is OutputForm.JSON else print_yaml)(items)
    for item in items:
        if item["failure"] and output is OutputForm.TABLE:
            print_line(f"shard {item['state_partition']}: {item['failure']}", err=True)


def _table_row(item: "Answer") -> tuple[object, ...]:
    owner = item["owner"]["wire"] if item["owner"] else "-"
    key = (item["state_partition"], item["status"], owner)
    if item["status"] == "CLOSED":
        return (*key, *("-" for _ in _HEAD[len(key) :]))
    return (
        *key,
        item["owner_epoch"],
        item["share_partitions"],
        item["state_batches"],
        item["live_bytes"],
        item["start_log_offset"],
        item["end_log_offset"],
        item["prune_lag"],
        item["load_ms"],
    )
