"""Write a state checkpoint of an archive: fold the records copied since the previous checkpoint."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from coordinator.recovery.claim_filter import RangeOwners, owner_epochs_at_starts
from coordinator.recovery.engines.base import Engine
from coordinator.recovery.final_states import OwnerEpochs, drop_fenced_partials, owner_epochs
from coordinator.recovery.fold import fold
from coordinator.recovery.folders import Location, open_folder
from coordinator.recovery.job import read_log
from coordinator.recovery.partials import partials_from_arrow
from coordinator.recovery.ranges import PARTIALS_OUTPUT, fold_range
from coordinator.recovery.schema import PARTIALS, RANGE_TOTALS
from coordinator.recovery.sources.archive import ArchiveSource, read_commits
from coordinator.recovery.sources.checkpoints import StoredCheckpoints, write_checkpoint
from coordinator.recovery.tasks import NamedOutput, Tables

CHECKPOINT_OUTPUT = "checkpoint"
# The owner epoch in a checkpoint: with `claimed`, it is valid after each earlier owner. Records of fenced
# owners are not in a checkpoint.
_ANY_OWNER = 2**31 - 1


def checkpoint_states(engine: Engine, location: Location, *, interval_ms: int, now_ms: int) -> int | None:
    """Write a checkpoint if the latest one is older than the interval; return its number, else None.

    A checkpoint has the states up to the end of the archive.  Only the records after the previous checkpoint
    are read.  Raises LogError or OSError if reading fails.
    """
    folder = open_folder(location)
    commits, before = read_commits(folder), StoredCheckpoints(folder)
    last = before.numbers[-1] if before.numbers else 0
    if not commits or (last and now_ms - before.get(last).at_ms < interval_ms):
        return None
    source = ArchiveSource(folder.location, use_checkpoints=True)
    log = read_log(engine, source, fold_range)
    joined = log.gathered.join_partitions(
        partial(_join_partials, owner_epochs(log.ranges)), lambda more: None
    )
    folded = dict(joined.rows(CHECKPOINT_OUTPUT))
    parts = []
    for number, rows in sorted(folded.items()):
        own = [row for row in log.ranges if row["state_partition"] == number and row["records"]]
        parts.append(
            (
                _summarise_ranges(
                    sorted(own, key=lambda row: row["range_start"]), rows, log.plan.ends[number]
                ),
                rows,
            )
        )
    write_checkpoint(folder, last + 1, commits[-1].number, now_ms, parts)
    return last + 1


def _join_partials(known: OwnerEpochs, state_partition: int, tables: Tables) -> Iterator[NamedOutput]:
    """Yield one partial state of each share-partition; with `known` bound, this is a `JoinTask`."""
    parts = tables.get(PARTIALS_OUTPUT, ())
    if not parts:
        return
    rows = fold(drop_fenced_partials(partials_from_arrow(pa.Table.from_batches(parts, PARTIALS)), known))
    if not len(rows):
        return
    whose = {"owner_epoch": np.full(len(rows), _ANY_OWNER), "claimed": np.ones(len(rows), np.int64)}
    begin = np.full(len(rows), int(rows["range_start"].min()))
    yield NamedOutput(
        CHECKPOINT_OUTPUT,
        state_partition,
        replace(rows, numbers={**rows.numbers, **whose, "range_start": begin}).to_arrow(),
    )


def _summarise_ranges(ranges: list[dict[str, Any]], rows: pa.RecordBatch, end: int) -> Mapping[str, Any]:
    """Return one row of `RANGES` that summarises consecutive ranges; `end` is the end of the last range."""
    owners = [RangeOwners.from_row(each) for each in ranges]
    last = max(owner_epochs_at_starts(owners)[-1], owners[-1].claimed_owner_epoch)
    return {
        **ranges[0],
        **{name: sum(each[name] for each in ranges) for name in RANGE_TOTALS},
        "range_start": rows.column("range_start")[0].as_py(),
        "range_end": end,
        # Use the last owner epoch of the ranges, because records of fenced owners are not in a checkpoint.
        "first_owner_epoch": last,
        "first_is_claim": False,
        "claimed_owner_epoch": last,
        "timestamp_ms_min": min(each["timestamp_ms_min"] for each in ranges),
        "timestamp_ms_max": max(each["timestamp_ms_max"] for each in ranges),
        "folded_records": sum(rows.column("records").to_pylist()),
    }
