"""Define the Arrow schemas of the rows that the recovery jobs read, exchange and write.

Columns have the names in docs/glossary.md. Columns `log_...`, `range_...` and `needed_from` are offsets of
the state log; all other offsets are offsets of user topics. Times are milliseconds since 1970-01-01 UTC.
Spark uses the same column names.

New columns are only added at the end of a schema, so that files of older releases stay readable.
"""

from typing import Final

import pyarrow as pa

# The value of an absent number: no owner epoch, no leader epoch in a record, an unknown start offset.
NONE: Final = -1

# The state partition of a range or finding that concerns all state partitions.
ALL: Final = -1


def required_field(name: str, type_: pa.DataType) -> pa.Field:
    return pa.field(name, type_, nullable=False)


# A record of the state log, not decoded. The last six columns are from the header of its record batch.
RECORDS = pa.schema(
    [
        required_field("state_partition", pa.int32()),
        required_field("log_offset", pa.int64()),
        required_field("timestamp_ms", pa.int64()),
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        # The writer's owner epoch, from a record header (`coordinator.log.claims`); -1 in Kafka's own topic.
        required_field("owner_epoch", pa.int32()),
        # The epoch of the broker that leads the log's partition; not the leader epoch of a share-partition.
        pa.field("partition_leader_epoch", pa.int32()),
        pa.field("producer_id", pa.int64()),
        pa.field("producer_epoch", pa.int16()),
        pa.field("base_sequence", pa.int32()),
        pa.field("base_offset", pa.int64()),
        # The flags of Kafka's record batch: codec, timestamp type, transactional, control.
        pa.field("attributes", pa.int16()),
    ]
)

# The summary of the records of one state partition, for the manifest.
RANGES = pa.schema(
    [
        required_field("state_partition", pa.int32()),
        # Log offset of the first record that was read, of any owner.
        required_field("range_start", pa.int64()),
        # Log offset after the last record that was read.
        required_field("range_end", pa.int64()),
        required_field("records", pa.int64()),
        required_field("batches", pa.int64()),
        # Size of the stored batches, with their headers and after compression.
        required_field("bytes", pa.int64()),
        # Owner epoch of the first record, which is used if the claim before it was pruned.
        required_field("first_owner_epoch", pa.int32()),
        required_field("first_is_claim", pa.bool_()),
        # Owner epoch of the last accepted claim in the range; -1 if there is none.
        required_field("claimed_owner_epoch", pa.int32()),
        required_field("claims", pa.int64()),
        # Number of records of unknown types, which Kafka and this project ignore.
        required_field("unknown_records", pa.int64()),
        # Number of records whose key cannot be decoded; Kafka refuses to load such a log.
        required_field("undecodable_records", pa.int64()),
        required_field("timestamp_ms_min", pa.int64()),
        required_field("timestamp_ms_max", pa.int64()),
        # Bytes after the last valid batch of a file: a write that was interrupted or is in progress.
        required_field("unread_bytes", pa.int64()),
        # Number of records that were folded into states, without records of fenced owners.
        required_field("folded_records", pa.int64()),
        # Number of damaged parts of the log, which were skipped.
        required_field("damages", pa.int64()),
    ]
)

# The columns of `RANGES` of which a manifest has the sums.
RANGE_TOTALS: Final = (
    *("records", "batches", "bytes", "claims", "unknown_records", "undecodable_records"),
    *("unread_bytes", "damages"),
)

STATE_BATCH = pa.struct(
    [
        required_field("first_offset", pa.int64()),
        required_field("last_offset", pa.int64()),
        required_field("delivery_state", pa.int8()),
        required_field("delivery_count", pa.int16()),
    ]
)

# The state of a share-partition, equal to the state of a shard that has loaded the same log.
STATES = pa.schema(
    [
        required_field("group_id", pa.string()),
        # The topic id in Kafka's text form: 22 characters of URL-safe base64.
        required_field("topic_id", pa.string()),
        required_field("partition", pa.int32()),
        required_field("start_offset", pa.int64()),
        required_field("delivery_complete_count", pa.int32()),
        required_field("state_epoch", pa.int32()),
        required_field("leader_epoch", pa.int32()),
        required_field("leader_epoch_max", pa.int32()),
        required_field("snapshot_epoch", pa.int32()),
        required_field("state_batches", pa.list_(pa.field("item", STATE_BATCH, nullable=False))),
        required_field("create_timestamp", pa.int64()),
        required_field("write_timestamp", pa.int64()),
        required_field("last_write_ms", pa.int64()),
        required_field("state_partition", pa.int32()),
        required_field("needed_from", pa.int64()),
        required_field("last_log_offset", pa.int64()),
        # The number of records since the last deletion, and of updates since the last snapshot.
        required_field("records", pa.int64()),
        required_field("updates", pa.int64()),
        required_field("update_bytes", pa.int64()),
        # True if a start offset decreased since the last snapshot, which Kafka 4.3 and older allow.
        required_field("start_went_back", pa.bool_()),
        pa.field("unreadable", pa.string()),
    ]
)

# A state in a state checkpoint, with the greatest start offset since the state's last snapshot.
CHECKPOINTED_STATES = STATES.append(required_field("start_offset_max", pa.int64()))

# Totals of the states of one state partition. The share-partition in `pinned_by` needs the oldest record, so
# it limits pruning.
STATE_TOTALS = pa.schema(
    [
        required_field("state_partition", pa.int32()),
        required_field("states", pa.int64()),
        required_field("unreadable", pa.int64()),
        required_field("state_batches", pa.int64()),
        required_field("needed_from", pa.int64()),
        required_field("pinned_by", pa.string()),
        required_field("pinned_since_ms", pa.int64()),
    ]
)

# The decoded records of share-partitions, in log order; -1 in a column means that the record has no such
# field.
HISTORY = pa.schema(
    [
        required_field("state_partition", pa.int32()),
        required_field("log_offset", pa.int64()),
        required_field("timestamp_ms", pa.int64()),
        # The writer's owner epoch; records of fenced owners are ignored (docs/state-topic.md).
        required_field("owner_epoch", pa.int32()),
        required_field("group_id", pa.string()),
        required_field("topic_id", pa.string()),
        required_field("partition", pa.int32()),
        # snapshot, update, tombstone or unreadable
        required_field("kind", pa.string()),
        required_field("snapshot_epoch", pa.int32()),
        required_field("state_epoch", pa.int32()),
        required_field("leader_epoch", pa.int32()),
        required_field("start_offset", pa.int64()),
        required_field("delivery_complete_count", pa.int32()),
        required_field("state_batches", pa.list_(pa.field("item", STATE_BATCH, nullable=False))),
    ]
)
