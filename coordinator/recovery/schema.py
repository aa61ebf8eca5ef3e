"""The columns of the four kinds of rows that the recovery jobs pass around, as Arrow schemas.

Names are those of the glossary: a bare epoch or offset does not occur.  All offsets named `log_...`,
`range_...` or `needed_from` are positions in the state log; the others are offsets of user topics.  Times are
milliseconds since 1970-01-01 UTC.  Spark reads the same columns under the same names.

A schema only grows at its end: archives and states that were written by older releases must stay readable.
"""

from typing import Final

import pyarrow as pa

# A number where there is none: no owner epoch, no leader epoch said, a start offset that is not known.
NONE: Final = -1

# The state partition of what concerns all of them.
ALL: Final = -1

# What a partial state does to the state that stands before its stretch of the log.
CONTINUES: Final = 0  # only updates: it goes on with it
REPLACES: Final = 1  # a snapshot: it is replaced, but for the memory of the greatest leader epoch
FORGETS: Final = 2  # a tombstone: nothing of it is left


def _required(name: str, type_: pa.DataType) -> pa.Field:
    return pa.field(name, type_, nullable=False)


# A record as it stands on the log, not understood yet.  The last six columns are those of its batch, and null
# where a source cannot tell (Spark's own Kafka reader).
RECORDS = pa.schema(
    [
        _required("state_partition", pa.int32()),
        _required("log_offset", pa.int64()),
        _required("timestamp_ms", pa.int64()),
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        # Of the writer, from the record's header (`coordinator.log.claims`); -1 on Kafka's own topic.
        _required("owner_epoch", pa.int32()),
        # Kafka's name for the epoch of the log partition's leader; not the share-partition leader's.
        pa.field("partition_leader_epoch", pa.int32()),
        pa.field("producer_id", pa.int64()),
        pa.field("producer_epoch", pa.int16()),
        pa.field("base_sequence", pa.int32()),
        pa.field("base_offset", pa.int64()),
        # The flags of Kafka's record batch: codec, timestamp type, transactional, control.
        pa.field("attributes", pa.int16()),
    ]
)

# One range of the log as it was read, for one state partition: what phase 2 and the manifest need to know.
RANGES = pa.schema(
    [
        _required("state_partition", pa.int32()),
        # Of the first record that was read, whether it counts or not.  Orders the ranges of a partition.
        _required("range_start", pa.int64()),
        # Behind the last record that was read.
        _required("range_end", pa.int64()),
        _required("records", pa.int64()),
        _required("batches", pa.int64()),
        # As stored, batch headers included; compressed if they are.
        _required("bytes", pa.int64()),
        # Whose owner epoch stands for the claim before it, if the log begins with this range.
        _required("first_owner_epoch", pa.int32()),
        _required("first_is_claim", pa.bool_()),
        # The greatest of the claims in it, -1 if there is none.
        _required("claimed_owner_epoch", pa.int32()),
        _required("claims", pa.int64()),
        # Of the types that nobody knows, which Kafka skips too.
        _required("unknown_records", pa.int64()),
        # Of which the share-partition cannot be told; Kafka refuses to load such a log.
        _required("undecodable_records", pa.int64()),
        _required("timestamp_ms_min", pa.int64()),
        _required("timestamp_ms_max", pa.int64()),
        # Behind the last good batch of a file: of a write that broke off or goes on.
        _required("unread_bytes", pa.int64()),
        # Records that partial states were made of: not those that never count (`ownership`).
        _required("folded_records", pa.int64()),
        # Stretches of the log that could not be read, and were skipped.
        _required("damages", pa.int64()),
    ]
)

# The columns of `RANGES` that add up.
RANGE_TOTALS: Final = (
    *("records", "batches", "bytes", "claims", "unknown_records", "undecodable_records"),
    *("unread_bytes", "damages"),
)

# Log offsets of a state partition, the last included, whose records could not be read.
DAMAGES = pa.schema(
    [
        _required("state_partition", pa.int32()),
        _required("first", pa.int64()),
        _required("last", pa.int64()),
        _required("what", pa.string()),
        # The record keys, without their type, of the lost records; empty if they are not known.
        _required("share_partitions", pa.list_(pa.field("item", pa.binary(), nullable=False))),
    ]
)

# What a stretch of the log amounts to for one share-partition: see `fold` for the rules that join them.  The
# fields are those of `ShareState` as if the stretch began from nothing, and what joining needs besides.
PARTIALS = pa.schema(
    [
        _required("state_partition", pa.int32()),
        # The record key without its record type: group id, topic id and partition as Kafka encodes them.
        _required("share_partition", pa.binary()),
        _required("range_start", pa.int64()),
        # Whose records these are, and when they count: with `claimed` if no higher owner epoch was current at
        # the start of the range, else only if this very one was.
        _required("owner_epoch", pa.int32()),
        _required("claimed", pa.bool_()),
        # Joined in the order of this column.
        _required("last_log_offset", pa.int64()),
        # Of the latest snapshot, or the first record since the last deletion: what must not be pruned.
        _required("needed_from", pa.int64()),
        # CONTINUES, REPLACES, FORGETS
        _required("effect", pa.int8()),
        # False: a tombstone was the last record.
        _required("exists", pa.bool_()),
        _required("snapshot_epoch", pa.int32()),
        _required("state_epoch", pa.int32()),
        _required("leader_epoch", pa.int32()),
        _required("leader_epoch_max", pa.int32()),
        _required("start_offset", pa.int64()),
        # The greatest that the start offset was meanwhile: above it, it went backward.
        _required("start_offset_max", pa.int64()),
        _required("delivery_complete_count", pa.int32()),
        _required("create_timestamp", pa.int64()),
        _required("write_timestamp", pa.int64()),
        _required("last_write_ms", pa.int64()),
        # Records folded; of these the updates since the snapshot, and their bytes as the shard counts them.
        _required("records", pa.int64()),
        _required("updates", pa.int64()),
        _required("update_bytes", pa.int64()),
        # Packed (`protocol.state_batches`).  The loose ones were written before the stretch named a start
        # offset: the start offset from before the stretch cuts them too.
        _required("batches", pa.binary()),
        _required("loose_batches", pa.binary()),
        # Why the last record that could not be understood could not; null if all could.
        pa.field("unreadable", pa.string()),
    ]
)

STATE_BATCH = pa.struct(
    [
        _required("first_offset", pa.int64()),
        _required("last_offset", pa.int64()),
        _required("delivery_state", pa.int8()),
        _required("delivery_count", pa.int16()),
    ]
)

# The state of a share-partition, as the shard holds it when it has loaded the same log.
STATES = pa.schema(
    [
        _required("group_id", pa.string()),
        # As Kafka writes it: 22 characters of URL-safe base64.
        _required("topic_id", pa.string()),
        _required("partition", pa.int32()),
        _required("start_offset", pa.int64()),
        _required("delivery_complete_count", pa.int32()),
        _required("state_epoch", pa.int32()),
        _required("leader_epoch", pa.int32()),
        _required("leader_epoch_max", pa.int32()),
        _required("snapshot_epoch", pa.int32()),
        _required("state_batches", pa.list_(pa.field("item", STATE_BATCH, nullable=False))),
        _required("create_timestamp", pa.int64()),
        _required("write_timestamp", pa.int64()),
        _required("last_write_ms", pa.int64()),
        _required("state_partition", pa.int32()),
        _required("needed_from", pa.int64()),
        _required("last_log_offset", pa.int64()),
        _required("records", pa.int64()),
        _required("updates", pa.int64()),
        _required("update_bytes", pa.int64()),
        # True if a start offset went backward since the last snapshot, which Kafka 4.3 and older let happen.
        _required("start_went_back", pa.bool_()),
        pa.field("unreadable", pa.string()),
    ]
)

# The states of one state partition together.  The share-partition in `pinned_by` needs the oldest record.
STATE_TOTALS = pa.schema(
    [
        _required("state_partition", pa.int32()),
        _required("states", pa.int64()),
        _required("unreadable", pa.int64()),
        _required("state_batches", pa.int64()),
        _required("needed_from", pa.int64()),
        _required("pinned_by", pa.string()),
        _required("pinned_since_ms", pa.int64()),
    ]
)

# What each record of a share-partition says, in the order of the log; -1 where a kind of record says nothing.
HISTORY = pa.schema(
    [
        _required("state_partition", pa.int32()),
        _required("log_offset", pa.int64()),
        _required("timestamp_ms", pa.int64()),
        # Of the writer; a record counts only if it is that of the owner (docs/state-topic.md).
        _required("owner_epoch", pa.int32()),
        _required("group_id", pa.string()),
        _required("topic_id", pa.string()),
        _required("partition", pa.int32()),
        # snapshot, update, tombstone or unreadable
        _required("kind", pa.string()),
        _required("snapshot_epoch", pa.int32()),
        _required("state_epoch", pa.int32()),
        _required("leader_epoch", pa.int32()),
        _required("start_offset", pa.int64()),
        _required("delivery_complete_count", pa.int32()),
        _required("state_batches", pa.list_(pa.field("item", STATE_BATCH, nullable=False))),
    ]
)
