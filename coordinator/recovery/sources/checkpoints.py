"""Read and write state checkpoints of an archive: the states of all share-partitions up to a log offset.

A state checkpoint has two files in the archive:

* `checkpoints/00000007-IDENTIFIER.parquet` has the states, and a row group for each state partition.
* `checkpoints/00000007.json` is its summary, which is written last. Without it, the Parquet file is ignored.

A job loads the states of the latest checkpoint, and reads only the later records.
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
from coordinator.recovery.folders import PARQUET_OPTIONS, Folder, open_folder
from coordinator.recovery.schema import CHECKPOINTED_STATES
from coordinator.recovery.states import StoredStates

CHECKPOINTS = "checkpoints"
# Format 1 had other columns. Checkpoints of format 1 are ignored, because new checkpoints replace them.
FORMAT = 2
_ADVICE = "remove the checkpoint: it can be made again"


class StoredStatesLocation(NamedTuple):
    """The Parquet file and row group with the states of a state partition."""

    folder: str
    file: str
    row_group: int
    owner_epoch: int
    summary: dict[str, Any]
    damages: Sequence[Sequence[Any]]

    def read(self) -> StoredStates:
        """Read the states. Raises LogDamaged."""
        folder = open_folder(self.folder)
        try:
            with folder.open_parquet(self.file) as opened:
                states = opened.read_row_group(self.row_group).cast(CHECKPOINTED_STATES)
        except (OSError, ValueError, pa.ArrowException) as error:
            place, number = f"{folder}/{self.file}", self.summary["state_partition"]
            raise LogDamaged(place, 0, str(error), _ADVICE, number) from None
        return StoredStates(states, self.owner_epoch, self.summary, self.damages)


@dataclass(frozen=True)
class StateCheckpoint:
    """One state checkpoint: the stored states by state partition, each up to `range_end` of its summary."""

    number: int
    at_ms: int
    commit: int
    file: str
    places: Mapping[int, StoredStatesLocation]

    def end(self, state_partition: int) -> int:
        """Return the end log offset of a state partition in this checkpoint; -1 if it has none."""
        place = self.places.get(state_partition)
        return -1 if place is None else int(place.summary["range_end"])


class StoredCheckpoints:
    """The state checkpoints of an archive, by number. Each summary is read when it is first used."""

    def __init__(self, folder: Folder) -> None:
        self._folder = folder / CHECKPOINTS
        names = (name.removesuffix(".json") for name in self._folder.names())
        self.numbers = sorted(int(name) for name in names if name.isdigit())
        self._read: dict[int, StateCheckpoint] = {}

    def get(self, number: int) -> StateCheckpoint:
        """Return a checkpoint; it is empty if its format is not `FORMAT`. Raises LogDamaged."""
        found = self._read.get(number)
        if found is None:
            name = f"{number:08d}.json"
            try:
                said = json.loads(self._folder.read(name))
                file = said.get("file", f"{number:08d}.parquet")
                places = {
                    part["summary"]["state_partition"]: StoredStatesLocation(
                        *(self._folder.location, file, row_group, part["owner_epoch"], part["summary"]),
                        part["damages"],
                    )
                    for row_group, part in enumerate(said["parts"] if said.get("format") == FORMAT else ())
                    # Early releases did not store damages: their states may lack records.
                    if "damages" in part
                }
                found = StateCheckpoint(said["checkpoint"], said["at_ms"], said["commit"], file, places)
            except (ValueError, LookupError, TypeError, AttributeError) as error:
                raise LogDamaged(
                    f"{self._folder}/{name}", 0, f"it is no checkpoint ({error})", _ADVICE
                ) from None
            self._read[number] = found
        return found

    def latest(self, state_partition: int, start: int, until: int) -> StoredStatesLocation | None:
        """Return the states of the latest checkpoint whose end is between `start` and `until`, or None.

        A checkpoint that ends before `start` may lack records that were never copied. The ends of checkpoints
        ascend, so a binary search reads only a few summaries.
        """
        at = bisect_right(self.numbers, until, key=lambda number: self.get(number).end(state_partition))
        for number in reversed(self.numbers[:at]):
            place = self.get(number).places.get(state_partition)
            if place is not None:
                return place if place.summary["range_end"] >= start else None
        return None

    def delete(self, number: int) -> None:
        """Delete a checkpoint; after an interruption, the remaining file is ignored."""
        file = self.get(number).file
        self._folder.delete(f"{number:08d}.json")
        self._folder.delete(file)


def write_checkpoint(
    folder: Folder, number: int, commit: int, at_ms: int, parts: Sequence[StoredStates]
) -> None:
    """Write the states of state partitions durably, and then the summary file that names them.

    Raises FileExistsError if another job has written a checkpoint with this number.
    """
    name, file = f"{number:08d}", f"{number:08d}-{uuid4().hex}.parquet"
    with (
        (folder / CHECKPOINTS).writer(file) as opened,
        pq.ParquetWriter(opened, CHECKPOINTED_STATES, **PARQUET_OPTIONS) as writer,
    ):
        for part in parts:
            writer.write_table(part.states, row_group_size=max(part.states.num_rows, 1))
    said = {
        "format": FORMAT,
        "checkpoint": number,
        "commit": commit,
        "at_ms": at_ms,
        "file": file,
        "parts": [
            {"owner_epoch": part.owner_epoch, "summary": part.summary, "damages": part.damages}
            for part in parts
        ],
    }
    (folder / CHECKPOINTS).create(f"{name}.json", json.dumps(said).encode())
