"""Convert the records of share-partitions to rows of `HISTORY`, one decoded row for each record."""

import numpy as np
import pyarrow as pa

from coordinator.recovery.decode import RecordKind, decode
from coordinator.recovery.records import Records
from coordinator.recovery.schema import HISTORY
from coordinator.recovery.share_partitions import parse_identity
from coordinator.recovery.states import batches_column

_NUMBERS = (
    *("log_offset", "timestamp_ms", "owner_epoch", "snapshot_epoch", "state_epoch", "leader_epoch"),
    *("start_offset", "delivery_complete_count"),
)


def history_rows(records: Records) -> pa.RecordBatch:
    """Decode the records of one state partition; omit records that belong to no share-partition."""
    decoded = decode(records.data_records())
    names = [parse_identity(identity) for identity in decoded.share_partitions]
    key = pa.array(decoded.key)
    columns = {
        "state_partition": pa.array(np.full(len(decoded), records.state_partition)),
        "group_id": pa.array([name[0] for name in names], pa.string()).take(key),
        "topic_id": pa.array([name[1] for name in names], pa.string()).take(key),
        "partition": pa.array([name[2] for name in names], pa.int32()).take(key),
        "kind": pa.array([kind.name.lower() for kind in RecordKind], pa.string()).take(
            pa.array(decoded.kind)
        ),
        "state_batches": batches_column(decoded.batches, len(decoded)),
        **{name: pa.array(getattr(decoded, name)) for name in _NUMBERS},
    }
    return pa.record_batch([columns[field.name].cast(field.type) for field in HISTORY], schema=HISTORY)
