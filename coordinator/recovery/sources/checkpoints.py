"""Read and write state checkpoints of an archive: partial states of all share-partitions up to a log offset.

The files of an archive::

    checkpoints/00000007.json              a summary, written last; Parquet files without it are ignored
    checkpoints/00000007-IDENTIFIER.parquet   rows of `PARTIALS`, a row group for each state partition

A checkpoint has the stored partial states of the log up to an offset. A job joins them with the partial
states of the later records. Therefore, a job reads only the latest checkpoint and the records after it.
"""

import json
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple
from uuid import uuid4  # noqa: TID251

import pyarrow as pa
import pyarrow.parquet as pq

from coordinator.errors import LogDamaged
from coordinator.recovery.folders import Folder, open_folder
from coordinator.recovery.ranges import PARTIALS_OUTPUT, RANGES_OUTPUT
from coordinator.recovery.schema import PARTIALS, RANGES
from coordinator.recovery.sources.base import LogRange
from coordinator.recovery.tasks import NamedOutput

CHECKPOINTS = "checkpoints"
_ADVICE = "remove the checkpoint: it can be made again"


class StoredPartialStates(NamedTuple):
    """The file and row group of a range's stored partial states, and its row of `RANGES`."""

    folder: str
    file: str
    row_group: int
    summary: Mapping[str, Any]


@dataclass(frozen=True)
class StateCheckpoint:
    """One checkpoint: `summaries` are rows of `RANGES` by state partition, each up to `range_end`."""

    number: int
    at_ms: int
    commit: int
    file: str
    row_groups: Mapping[int, int]
    summaries: Mapping[int, Mapping[str, Any]]

    def end(self, state_partition: int) -> int:
        """Return the log offset up to which it has a state partition; -1 if it does not."""
        summary = self.summaries.get(state_partition)
        return -1 if summary is None else int(summary["range_end"])


class StoredCheckpoints:
    """The checkpoints of an archive by number. Each summary is read when it is first used."""

    def __init__(self, folder: Folder) -> None:
        self._folder = folder / CHECKPOINTS
        names = (name.removesuffix(".json") for name in self._folder.names())
        self.numbers = sorted(int(name) for name in names if name.isdigit())
        self._read: dict[int, StateCheckpoint] = {}

    def get(self, number: int) -> StateCheckpoint:
        """Return a checkpoint. Raises LogDamaged."""
        found = self._read.get(number)
        if found is None:
            name = f"{number:08d}.json"
            try:
                said = json.loads(self._folder.read(name))
                found = self._read[number] = StateCheckpoint(
                    said["checkpoint"],
                    said["at_ms"],
                    said["commit"],
                    said.get("file", f"{number:08d}.parquet"),
                    {int(p): group for p, group in said["row_groups"].items()},
                    {row["state_partition"]: row for row in said["summaries"]},
                )
            except (ValueError, KeyError) as error:
                raise LogDamaged(
                    f"{self._folder}/{name}", 0, f"it is no checkpoint ({error})", _ADVICE
                ) from None
        return found

    def latest_range(self, state_partition: int, start: int, until: int) -> LogRange | None:
        """Return the range of the latest checkpoint that ends from `start` to `until`, or None.

        A checkpoint that ends before `start` may lack records that were never copied.  A checkpoint ends at
        or after the previous one, so only a few summaries are read.
        """
        at = bisect_right(self.numbers, until, key=lambda number: self.get(number).end(state_partition))
        for number in reversed(self.numbers[:at]):
            checkpoint = self.get(number)
            if checkpoint.end(state_partition) < 0:
                continue
            summary = checkpoint.summaries[state_partition]
            if summary["range_end"] < start:
                return None
            group = checkpoint.row_groups[state_partition]
            place = StoredPartialStates(self._folder.location, checkpoint.file, group, summary)
            return LogRange(state_partition, summary["range_start"], summary["range_end"], 0, place)
        return None

    def delete(self, number: int) -> None:
        """Delete a checkpoint; an interrupted deletion leaves only a file that is ignored."""
        file = self.get(number).file
        self._folder.delete(f"{number:08d}.json")
        self._folder.delete(file)


def write_checkpoint(
    folder: Folder,
    number: int,
    commit: int,
    at_ms: int,
    parts: Sequence[tuple[Mapping[str, Any], pa.RecordBatch]],
) -> None:
    """Write the summaries and partial states of state partitions durably; the summary file is last.

    Raises FileExistsError if another run has written this checkpoint.
    """
    name, file = f"{number:08d}", f"{number:08d}-{uuid4().hex}.parquet"
    with (
        (folder / CHECKPOINTS).writer(file) as opened,
        pq.ParquetWriter(opened, PARTIALS, compression="zstd") as writer,
    ):
        for _, rows in parts:
            table = pa.Table.from_batches([rows], PARTIALS)
            writer.write_table(table, row_group_size=max(rows.num_rows, 1))
    said = {
        "checkpoint": number,
        "commit": commit,
        "at_ms": at_ms,
        "file": file,
        "row_groups": {summary["state_partition"]: group for group, (summary, _) in enumerate(parts)},
        "summaries": [summary for summary, _ in parts],
    }
    (folder / CHECKPOINTS).create(f"{name}.json", json.dumps(said).encode())


def read_partials(folder: Folder, file: str, row_group: int, state_partition: int) -> pa.Table:
    """Return the partial states of a state partition in a checkpoint. Raises LogDamaged."""
    try:
        with folder.open_parquet(file) as opened:
            return opened.read_row_group(row_group).cast(PARTIALS).combine_chunks()
    except (OSError, ValueError) as error:
        raise LogDamaged(f"{folder}/{file}", 0, str(error), _ADVICE, state_partition) from None


def read_stored_outputs(log_range: LogRange) -> tuple[list[NamedOutput], int]:
    """Return the stored outputs of a range, and the number of records that they summarise."""
    folder, file, row_group, summary = log_range.place
    number = log_range.state_partition
    rows = read_partials(open_folder(folder), file, row_group, number).to_batches()
    ranges = pa.RecordBatch.from_pylist([dict(summary)], RANGES)
    outputs = [
        NamedOutput(RANGES_OUTPUT, number, ranges),
        *(NamedOutput(PARTIALS_OUTPUT, number, each) for each in rows),
    ]
    return outputs, summary["records"]
