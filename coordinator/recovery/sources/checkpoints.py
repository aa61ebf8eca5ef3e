"""Read and write state checkpoints of an archive: partial states of all share-partitions up to a log offset.

The files of an archive directory::

    checkpoints/00000007.parquet   rows of `PARTIALS`, a row group for each state partition
    checkpoints/00000007.json      a summary, written last; Parquet files without it are ignored

A checkpoint has the stored partial states of the log up to an offset.  They are joined with the partial
states of the records after it. So a job reads the latest checkpoint and only the records after it.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from coordinator.errors import LogDamaged
from coordinator.recovery.durable_files import sync_file, write_durably
from coordinator.recovery.ranges import PARTIALS_OUTPUT, RANGES_OUTPUT
from coordinator.recovery.schema import PARTIALS, RANGES
from coordinator.recovery.sources.base import LogRange
from coordinator.recovery.tasks import NamedOutput

CHECKPOINTS = "checkpoints"
_ADVICE = "remove the checkpoint: it can be made again"


class StoredRange(NamedTuple):
    """The file and row group of a range's stored partial states, and its row of `RANGES`."""

    file: str
    row_group: int
    summary: Mapping[str, Any]


@dataclass(frozen=True)
class StateCheckpoint:
    """One checkpoint: `summaries` are rows of `RANGES` by state partition, each up to `range_end`."""

    number: int
    at_ms: int
    commit: int
    row_groups: Mapping[int, int]
    summaries: Mapping[int, Mapping[str, Any]]

    def range_of(self, folder: str, state_partition: int) -> LogRange:
        """Return a log range whose partial states are those of the checkpoint."""
        summary = self.summaries[state_partition]
        file = str(Path(folder) / CHECKPOINTS / f"{self.number:08d}.parquet")
        place = StoredRange(file, self.row_groups[state_partition], summary)
        return LogRange(state_partition, summary["range_start"], summary["range_end"], 0, place)


def read_checkpoints(folder: str) -> list[StateCheckpoint]:
    """Return all checkpoints of an archive, oldest first. Raises LogDamaged."""
    found = []
    for path in sorted((Path(folder) / CHECKPOINTS).glob("*.json")):
        try:
            said = json.loads(path.read_text("utf-8"))
            found.append(
                StateCheckpoint(
                    said["checkpoint"],
                    said["at_ms"],
                    said["commit"],
                    {int(p): group for p, group in said["row_groups"].items()},
                    {row["state_partition"]: row for row in said["summaries"]},
                )
            )
        except (ValueError, KeyError) as error:
            raise LogDamaged(path, 0, f"it is no checkpoint ({error})", _ADVICE) from None
    return found


def write_checkpoint(
    folder: str,
    number: int,
    commit: int,
    at_ms: int,
    parts: Sequence[tuple[Mapping[str, Any], pa.RecordBatch]],
) -> None:
    """Write the summaries and partial states of state partitions durably; the summary file is last."""
    path = Path(folder) / CHECKPOINTS / f"{number:08d}.parquet"
    path.parent.mkdir(exist_ok=True)
    unfinished = path.with_suffix(".unfinished")
    with pq.ParquetWriter(unfinished, PARTIALS, compression="zstd") as writer:
        for _, rows in parts:
            writer.write_table(pa.Table.from_batches([rows], PARTIALS), row_group_size=max(rows.num_rows, 1))
    sync_file(unfinished)
    unfinished.replace(path)
    said = {
        "checkpoint": number,
        "commit": commit,
        "at_ms": at_ms,
        "row_groups": {summary["state_partition"]: group for group, (summary, _) in enumerate(parts)},
        "summaries": [summary for summary, _ in parts],
    }
    write_durably(path.with_suffix(".json"), json.dumps(said).encode())


def stored_outputs(log_range: LogRange) -> tuple[list[NamedOutput], int]:
    """Return the stored outputs of a range, and the number of records that they summarise."""
    file, row_group, summary = log_range.place
    try:
        with pq.ParquetFile(file) as opened:
            rows = opened.read_row_group(row_group).cast(PARTIALS).combine_chunks().to_batches()
    except (OSError, ValueError) as error:
        raise LogDamaged(file, 0, str(error), _ADVICE, log_range.state_partition) from None
    ranges = pa.RecordBatch.from_pylist([dict(summary)], RANGES)
    number = log_range.state_partition
    outputs = [
        NamedOutput(RANGES_OUTPUT, number, ranges),
        *(NamedOutput(PARTIALS_OUTPUT, number, each) for each in rows),
    ]
    return outputs, summary["records"]
