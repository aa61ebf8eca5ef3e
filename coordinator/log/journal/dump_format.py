"""Convert the records of dumped batches to JSON objects.

Keys and values have the field names of `kafka-dump-log.sh --share-group-state-decoder`. Source:
ShareGroupStateMessageFormatter of Kafka 4.4.
"""

from collections.abc import Iterator
from typing import Any

from coordinator.log.journal.inspect import DumpedBatch
from protocol.errors import DecodeError
from protocol.messages.share_snapshot import ShareSnapshotValue
from protocol.messages.share_update import ShareUpdateValue
from protocol.state_batches import unpack
from protocol.state_records import (
    VALUE_VERSION,
    StateRecord,
    UnreadableValue,
    decode_record,
    topic_id_text,
)


def record_objects(dumped: DumpedBatch) -> Iterator[dict[str, Any]]:
    """Yield the records of a batch as JSON objects; `key` and `value` have Kafka's structure."""
    for record in dumped.batch.records:
        shown: dict[str, Any] = {
            "file": dumped.file,
            "position": dumped.position,
            "commit": dumped.commit,
            "state_partition": dumped.state_partition,
            "log_offset": record.offset,
            "timestamp_ms": record.timestamp_ms,
            "headers": [name for name, _ in record.headers],
            "key": None,
            "value": None,
        }
        try:
            decoded = decode_record(record.key, record.value)
        except DecodeError as error:
            yield {**shown, "error": str(error)}
            continue
        if decoded is None:
            yield {**shown, "error": f"unknown record type {_record_type(record.key)}"}
            continue
        shown["key"] = {"type": _record_type(record.key), "data": key_data(decoded)}
        if isinstance(decoded.value, ShareSnapshotValue | ShareUpdateValue):
            shown["value"] = {"version": VALUE_VERSION, "data": value_data(decoded.value)}
        elif isinstance(decoded.value, UnreadableValue) and record.value is not None:
            shown["error"] = decoded.value.reason
        yield shown


def key_data(record: StateRecord) -> dict[str, Any]:
    """Return a key with the field names of Kafka's tools."""
    group_id, topic_id, partition = record.key
    return {"groupId": group_id, "topicId": topic_id_text(topic_id), "partition": partition}


def value_data(value: ShareSnapshotValue | ShareUpdateValue) -> dict[str, Any]:
    """Return a snapshot or an update with the field names of Kafka's tools, without default values."""
    data: dict[str, Any] = {"snapshotEpoch": value.snapshot_epoch}
    if isinstance(value, ShareSnapshotValue):
        data["stateEpoch"] = value.state_epoch
    data["leaderEpoch"] = value.leader_epoch
    data["startOffset"] = value.start_offset
    if value.delivery_complete_count != -1:
        data["deliveryCompleteCount"] = value.delivery_complete_count
    if isinstance(value, ShareSnapshotValue):
        data["createTimestamp"] = value.create_timestamp
        data["writeTimestamp"] = value.write_timestamp
        # A tagged field of this project, which Kafka ignores.
        if value.leader_epoch_max != -1:
            data["leaderEpochMax"] = value.leader_epoch_max
    data["stateBatches"] = [
        {
            "firstOffset": batch.first_offset,
            "lastOffset": batch.last_offset,
            "deliveryState": batch.delivery_state,
            "deliveryCount": batch.delivery_count,
        }
        for batch in unpack(value.state_batches)
    ]
    return data


def _record_type(key: bytes | None) -> int:
    return int.from_bytes((key or b"")[:2], signed=True)
