"""Replay the records of share-partitions with the coordinator's code, or decode them to rows of `HISTORY`.

For a replay, the engine reads the log once and selects the records of the given share-partitions. This
process replays the records one by one, so only the jobs `explain` and `diff`, which need few
share-partitions, do this.
"""

from collections.abc import Collection, Iterable, Iterator
from functools import partial
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from coordinator.recovery.decode import RecordKind, decode
from coordinator.recovery.engines import Engine
from coordinator.recovery.job import LogReadResult, read_log
from coordinator.recovery.records import Records
from coordinator.recovery.scan import PartitionScan, ScannedRecords
from coordinator.recovery.schema import HISTORY, RECORDS
from coordinator.recovery.share_partitions import identity_columns, record_key_identity
from coordinator.recovery.sources.base import LogCut, Source
from coordinator.recovery.states import batches_column
from coordinator.recovery.tasks import NamedOutput
from coordinator.shard import ShareState
from coordinator.shard.history import HistoryStep
from protocol.state_records import SharePartitionKey, decode_record

SELECTED_OUTPUT = "selected"
# The maximum number of records that are decoded at a time, to limit the memory.
_CHUNK_RECORDS = 20_000
_COLUMNS = ("state_partition", "log_offset", "timestamp_ms", "owner_epoch", "key", "value")

_HISTORY_NUMBERS = (
    *("log_offset", "timestamp_ms", "owner_epoch", "snapshot_epoch", "state_epoch", "leader_epoch"),
    *("start_offset", "delivery_complete_count"),
)


class History(NamedTuple):
    """The log that was read, and the steps of the selected share-partitions, each in log order."""

    log: LogReadResult
    steps: Iterable[HistoryStep]


def read_history(
    engine: Engine,
    source: Source,
    keys: Collection[SharePartitionKey],
    *,
    cut: LogCut | None = None,
    state_partitions: Collection[int] | None = None,
) -> History:
    """Read the records of share-partitions in one pass; by default in all state partitions.

    Raises LogError, ConfigError or OSError if reading fails.
    """
    wanted = frozenset(map(record_key_identity, keys))
    observer = partial(_RecordSelection, wanted)
    log = read_log(engine, source, observer, cut=cut, state_partitions=state_partitions)
    order = [(name, "ascending") for name in ("state_partition", "log_offset")]
    table = log.table(SELECTED_OUTPUT, RECORDS).select(_COLUMNS).sort_by(order)
    return History(log, _iterate_history_steps(table))


class _RecordSelection:
    """Selects the valid records of some share-partitions; this is an `Observer`."""

    def __init__(self, wanted: frozenset[bytes], scan: PartitionScan) -> None:
        self._wanted = wanted
        self._scan = scan
        self._selected: list[pa.RecordBatch] = []

    def process(self, scanned: ScannedRecords) -> None:
        """Process the next records."""
        decoded = scanned.decoded
        names = [n for n, identity in enumerate(self._scan.names) if identity in self._wanted]
        rows = np.flatnonzero(np.isin(decoded.key, names))
        if len(rows):
            self._selected.append(scanned.records.take(decoded.record[rows]).to_arrow())

    def outputs(self) -> Iterator[NamedOutput]:
        """Yield the records."""
        for rows in self._selected:
            yield NamedOutput(SELECTED_OUTPUT, self._scan.state_partition, rows)


def _iterate_history_steps(records: pa.Table) -> Iterator[HistoryStep]:
    states: dict[tuple[int, SharePartitionKey], ShareState | None] = {}
    for batch in records.to_batches(_CHUNK_RECORDS):
        for row in batch.to_pylist():
            record = decode_record(row["key"], row["value"])
            assert record is not None
            name = (row["state_partition"], record.key)
            place = {each: row[each] for each in ("log_offset", "timestamp_ms", "owner_epoch")}
            step = HistoryStep.apply(
                states.get(name), record, state_partition=row["state_partition"], **place
            )
            states[name] = step.after
            yield step


def history_rows(records: Records) -> pa.RecordBatch:
    """Decode the records of one state partition; omit records that belong to no share-partition."""
    decoded = decode(records.data_records())
    key = pa.array(decoded.key)
    columns = {
        "state_partition": pa.array(np.full(len(decoded), records.state_partition)),
        **{name: each.take(key) for name, each in identity_columns(decoded.share_partitions).items()},
        "kind": pa.array([kind.name.lower() for kind in RecordKind], pa.string()).take(
            pa.array(decoded.kind)
        ),
        "state_batches": batches_column(decoded.batches, len(decoded)),
        **{name: pa.array(getattr(decoded, name)) for name in _HISTORY_NUMBERS},
    }
    return pa.record_batch([columns[field.name].cast(field.type) for field in HISTORY], schema=HISTORY)
