"""Phase 2, after all ranges are read: drop partial states of fenced owners, and join the others to states."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import groupby
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from coordinator.recovery.claim_filter import RangeOwners, owner_epochs_at_starts, valid_records
from coordinator.recovery.decode import StateBatches
from coordinator.recovery.fold import convert_to_states, fold
from coordinator.recovery.partials import PartialStates, batch_floors, partials_from_arrow
from coordinator.recovery.ranges import PARTIALS_OUTPUT
from coordinator.recovery.records import Bools, Ints, column_to_ints
from coordinator.recovery.schema import NONE, PARTIALS, STATE_BATCH, STATE_TOTALS, STATES
from coordinator.recovery.tasks import NamedOutput, Tables
from protocol.state_records import topic_id_text

STATES_OUTPUT = "states"
TOTALS_OUTPUT = "totals"

_TOPIC_ID_BYTES, _PARTITION_BYTES = 16, 4

# The owner epoch at the start of each range, by state partition and range start.
OwnerEpochs = Mapping[tuple[int, int], int]


def owner_epochs(ranges: Iterable[Mapping[str, Any]]) -> dict[tuple[int, int], int]:
    """Compute the owner epoch at the start of each range from all rows of `RANGES`.

    The ranges of a state partition must begin at the start of its log.  A range without records is ignored.
    """
    found: dict[tuple[int, int], int] = {}
    ordered = sorted(
        (row for row in ranges if row["records"]),
        key=lambda row: (row["state_partition"], row["range_start"]),
    )
    for state_partition, rows in groupby(ordered, key=lambda row: row["state_partition"]):
        of_partition = list(rows)
        owners = owner_epochs_at_starts(map(RangeOwners.from_row, of_partition))
        for row, owner_epoch in zip(of_partition, owners, strict=True):
            found[state_partition, row["range_start"]] = owner_epoch
    return found


def valid_rows(
    known: OwnerEpochs, state_partition: Ints, range_start: Ints, owner_epoch: Ints, claimed: Ints
) -> Bools:
    """Return which rows have a valid owner epoch; the arguments are columns of `PARTIALS`."""
    if not len(range_start):
        return np.zeros(0, np.bool_)
    places = np.stack([state_partition, range_start])
    ranges, inverse = np.unique(places, axis=1, return_inverse=True)
    at_start = np.array([known[int(each[0]), int(each[1])] for each in ranges.T], np.int64)
    return valid_records(at_start[inverse.reshape(-1)], owner_epoch, claimed != 0)


def drop_fenced_partials(rows: PartialStates, known: OwnerEpochs) -> PartialStates:
    """Drop the partial states of fenced owner epochs; clear the owner epoch of the others."""
    if not len(rows):
        return rows
    found = rows.take(
        valid_rows(
            *(known, rows["state_partition"], rows["range_start"], rows["owner_epoch"], rows["claimed"])
        )
    )
    nothing = np.zeros(len(found), np.int64)
    cleared = {**found.numbers, "owner_epoch": nothing + NONE, "claimed": nothing}
    return replace(found, numbers=cleared)


def fold_to_states(rows: PartialStates) -> PartialStates:
    """Fold the partial states of a whole log into one for each share-partition; drop deleted ones."""
    return convert_to_states(fold(rows))


def states_from_partials(partials: pa.Table | pa.RecordBatch, known: OwnerEpochs) -> pa.RecordBatch:
    """Return the states (rows of `STATES`) of share-partitions, given all their partial states."""
    return make_states(fold_to_states(drop_fenced_partials(partials_from_arrow(partials), known)))


def join_states(known: OwnerEpochs, state_partition: int, tables: Tables) -> Iterator[NamedOutput]:
    """Yield the states of a state partition; with `known` bound, this is a `JoinTask`."""
    partials = tables.get(PARTIALS_OUTPUT, ())
    states = states_from_partials(pa.Table.from_batches(partials, PARTIALS), known)
    yield NamedOutput(STATES_OUTPUT, state_partition, states)
    yield NamedOutput(TOTALS_OUTPUT, state_partition, compute_totals(state_partition, states))


def compute_totals(state_partition: int, states: pa.RecordBatch | pa.Table) -> pa.RecordBatch:
    """Return the row of `STATE_TOTALS` of the states of one state partition."""
    row: dict[str, Any] = dict.fromkeys(STATE_TOTALS.names, 0)
    row |= {"state_partition": state_partition, "states": len(states), "pinned_by": ""}
    if len(states):
        pin = int(np.argmin(column_to_ints(states.column("needed_from"))))
        oldest = states.slice(pin, 1).to_pylist()[0]
        row |= {
            "unreadable": len(states) - states.column("unreadable").null_count,
            "state_batches": pc.sum(pc.list_value_length(states.column("state_batches"))).as_py(),
            "needed_from": oldest["needed_from"],
            "pinned_by": f"{oldest['group_id']}:{oldest['topic_id']}:{oldest['partition']}",
            "pinned_since_ms": oldest["write_timestamp"] or oldest["last_write_ms"],
        }
    return pa.RecordBatch.from_pylist([row], STATE_TOTALS)


def make_states(rows: PartialStates) -> pa.RecordBatch:
    """Return joined partial states as rows of the schema `STATES`."""
    groups, topics, partitions = [], [], []
    # Many share-partitions have the same topic, so the texts of topic ids are cached.
    topic_texts: dict[bytes, str] = {}
    names = rows.names
    for number in rows.key.tolist():
        identity = names[number][1]
        topic_id = identity[-_TOPIC_ID_BYTES - _PARTITION_BYTES : -_PARTITION_BYTES]
        text = topic_texts.get(topic_id)
        if text is None:
            text = topic_texts[topic_id] = topic_id_text(topic_id)
        groups.append(identity[2 : -_TOPIC_ID_BYTES - _PARTITION_BYTES].decode())
        topics.append(text)
        partitions.append(int.from_bytes(identity[-_PARTITION_BYTES:], signed=True))
    special = {
        "group_id": pa.array(groups, pa.string()),
        "topic_id": pa.array(topics, pa.string()),
        "partition": pa.array(partitions, pa.int32()),
        "state_batches": batches_column(rows.batches, len(rows)),
        "start_went_back": pa.array(rows["start_offset_max"] > batch_floors(rows["start_offset"])),
        "unreadable": pa.array([rows.unreadable.get(row) for row in range(len(rows))], pa.string()),
    }
    columns = [
        special[column.name] if column.name in special else pa.array(rows[column.name]).cast(column.type)
        for column in STATES
    ]
    return pa.record_batch(columns, schema=STATES)


def batches_column(batches: StateBatches, rows: int) -> pa.Array:
    """Return an Arrow column with a list of state batches for each of `rows` rows."""
    offsets = np.zeros(rows + 1, np.int32)
    offsets[1:] = np.cumsum(np.bincount(batches.row, minlength=rows))
    items = pa.StructArray.from_arrays(
        [pa.array(getattr(batches, column.name)).cast(column.type) for column in STATE_BATCH],
        fields=list(STATE_BATCH),
    )
    return pa.ListArray.from_arrays(pa.array(offsets), items, type=STATES.field("state_batches").type)
