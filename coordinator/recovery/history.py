"""Fold share-partitions record by record with the coordinator's own code, and return each intermediate state.

The engine reads the log once and selects the records of these share-partitions. This process folds the
records, so this module is used only for few share-partitions: for the jobs `explain` and `diff`, and for the
sample of an audit (X6).
"""

from collections.abc import Collection, Iterable, Iterator
from functools import partial
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from coordinator.recovery.deduplication import record_key_identity
from coordinator.recovery.engines.base import Engine
from coordinator.recovery.final_states import owner_epochs, valid_rows
from coordinator.recovery.job import LogReadResult, read_log
from coordinator.recovery.ranges import RangeScan
from coordinator.recovery.records import Records, column_to_ints
from coordinator.recovery.schema import required_field
from coordinator.recovery.sources.base import LogCut, Source
from coordinator.recovery.tasks import NamedOutput
from coordinator.shard import ShareState
from coordinator.shard.history import HistoryStep
from protocol.state_records import SharePartitionKey, decode_record

SELECTED_OUTPUT = "selected"
# Maximum number of records that are decoded at a time.
_CHUNK_RECORDS = 20_000

# Records of the selected share-partitions; the first four columns determine whether their owner epoch is
# valid.
_SELECTED = pa.schema(
    [
        required_field("state_partition", pa.int64()),
        required_field("range_start", pa.int64()),
        required_field("owner_epoch", pa.int64()),
        required_field("claimed", pa.int64()),
        required_field("log_offset", pa.int64()),
        required_field("timestamp_ms", pa.int64()),
        required_field("key", pa.binary()),
        pa.field("value", pa.binary()),
    ]
)


class History(NamedTuple):
    """The log that was read, and the steps of the selected share-partitions, in log order for each."""

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
    log = read_log(
        engine, source, partial(_select_records, wanted), cut=cut, state_partitions=state_partitions
    )
    table = log.gathered.table(SELECTED_OUTPUT, _SELECTED)
    whose = [column_to_ints(table.column(name)) for name in _SELECTED.names[:4]]
    table = table.filter(pa.array(valid_rows(owner_epochs(log.ranges), *whose)))
    order = [(name, "ascending") for name in ("state_partition", "log_offset")]
    return History(log, _iterate_steps(table.sort_by(order)))


def _select_records(wanted: Collection[bytes], chunks: Iterable[Records]) -> Iterator[NamedOutput]:
    """Yield the records of some share-partitions; with `wanted` bound, this is a `ReadTask`."""
    scans: dict[int, RangeScan] = {}
    for chunk in chunks:
        number = chunk.state_partition
        scan = scans.setdefault(number, RangeScan(number))
        records, decoded, claimed = scan.process_records(chunk)
        names = [n for n, identity in enumerate(decoded.share_partitions) if identity in wanted]
        rows = np.flatnonzero(np.isin(decoded.key, names))
        if len(rows):
            found = records.take(decoded.record[rows])
            place = (np.full(len(rows), each, np.int64) for each in (number, scan.range_start))
            columns = (*place, found.owner_epoch, claimed[rows], found.log_offset, found.timestamp_ms)
            arrays = [pa.array(column.astype(np.int64)) for column in columns]
            arrays += [found.keys.to_arrow(), found.values.to_arrow()]
            yield NamedOutput(SELECTED_OUTPUT, number, pa.record_batch(arrays, schema=_SELECTED))
    for scan in scans.values():
        yield from scan.outputs()


def _iterate_steps(records: pa.Table) -> Iterator[HistoryStep]:
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
