"""Write a state checkpoint of an archive: update the previous checkpoint with the records since then."""

import json
from collections.abc import Iterator

import pyarrow as pa

from coordinator.recovery.engines import Engine
from coordinator.recovery.folders import Location, open_folder
from coordinator.recovery.job import read_log
from coordinator.recovery.scan import PartitionScan, ScannedRecords, StateFold
from coordinator.recovery.schema import CHECKPOINTED_STATES
from coordinator.recovery.sources.archive import ArchiveSource, read_commits
from coordinator.recovery.sources.checkpoints import StoredCheckpoints, write_checkpoint
from coordinator.recovery.states import StoredStates, existing_states
from coordinator.recovery.tasks import NamedOutput

_STATES_OUTPUT, _SCAN_OUTPUT = "states", "scan"


def checkpoint_states(engine: Engine, location: Location, *, interval_ms: int, now_ms: int) -> int | None:
    """If the latest checkpoint is older than the interval, write a checkpoint and return its number.

    A checkpoint has the states up to the end of the archive.  Only the records after the previous checkpoint
    are read.  Raises LogError or OSError if reading fails.
    """
    folder = open_folder(location)
    commits, before = read_commits(folder), StoredCheckpoints(folder)
    last = before.numbers[-1] if before.numbers else 0
    if not commits or (last and now_ms - before.get(last).at_ms < interval_ms):
        return None
    log = read_log(engine, ArchiveSource(folder.location, use_checkpoints=True), _CheckpointObserver)
    tables: dict[int, list[pa.RecordBatch]] = {}
    for each in log.outputs:
        if each.name == _STATES_OUTPUT:
            tables.setdefault(each.state_partition, []).append(each.rows)
    parts = []
    for row in log.rows(_SCAN_OUTPUT):
        summary = json.loads(row["summary"])
        number = summary["state_partition"]
        # The archive may end after its last record, if the log offsets there have no records any more.
        summary["range_end"] = log.plan.ends[number]
        states = pa.Table.from_batches(tables[number], CHECKPOINTED_STATES).combine_chunks()
        parts.append(StoredStates(states, row["owner_epoch"], summary, json.loads(row["damages"])))
    parts.sort(key=lambda part: part.summary["state_partition"])
    write_checkpoint(folder, last + 1, commits[-1].number, now_ms, parts)
    return last + 1


class _CheckpointObserver:
    """Yields the states, and the values that a later scan needs to continue; this is an `Observer`."""

    def __init__(self, scan: PartitionScan) -> None:
        self._scan = scan
        self._fold = StateFold(scan)

    def process(self, scanned: ScannedRecords) -> None:
        """Process the next records."""
        self._fold.add(scanned.decoded)

    def outputs(self) -> Iterator[NamedOutput]:
        """Yield the states, and the values that a later scan needs."""
        number, greatest = self._scan.state_partition, existing_states(self._fold.result())
        columns = [*self._fold.to_arrow().columns, pa.array(greatest["start_offset_max"])]
        states = pa.record_batch(columns, schema=CHECKPOINTED_STATES)
        yield NamedOutput(_STATES_OUTPUT, number, states)
        row = {
            "owner_epoch": self._scan.owner_epoch,
            "summary": json.dumps(self._scan.summary()),
            "damages": json.dumps(self._scan.damages),
        }
        yield NamedOutput.from_rows(_SCAN_OUTPUT, number, row)
