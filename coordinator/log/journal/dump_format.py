"""Format dumped batches as JSON, or like `kafka-dump-log.sh --share-group-state-decoder`.

The lines are those of Kafka 4's tool, so scripts for that tool can parse them.  The position in the journal
follows at the end of the line.  Source: DumpLogSegments of Kafka 4.4, `printBatchLevel` and the share group
state parser; JSON records have the structure of ShareGroupStateMessageFormatter.
"""

import json
from collections.abc import Iterator
from typing import Any

from coordinator.log.journal.inspect import DumpedBatch
from protocol.errors import DecodeError
from protocol.messages.share_snapshot import ShareSnapshotValue
from protocol.messages.share_update import ShareUpdateValue
from protocol.record_batch import LogRecord, RecordBatch
from protocol.state_batches import unpack
from protocol.state_records import (
    VALUE_VERSION,
    StateRecord,
    UnreadableValue,
    decode_record,
    topic_id_text,
)

MAGIC = 2
_OPTIONAL_EMPTY = "OptionalLong.empty"


def kafka_lines(dumped: DumpedBatch) -> Iterator[str]:
    """Yield the line of a batch and the lines of its records, as Kafka's tool prints them."""
    yield f"{batch_line(dumped.batch, dumped.position)} {position_text(dumped)}"
    for index, record in enumerate(dumped.batch.records):
        yield record_line(record, dumped.batch.base_sequence + index if _has_sequence(dumped.batch) else -1)


def position_text(dumped: DumpedBatch) -> str:
    """Return the position of a batch in the journal, in the format of the rest of its line."""
    return f"statePartition: {dumped.state_partition} commit: {dumped.commit} file: {dumped.file}"


def batch_line(batch: RecordBatch, position: int) -> str:
    """Return the line that Kafka's tool prints for a batch."""
    count = len(batch.records)
    last_sequence = (
        batch.base_sequence + batch.last_offset - batch.base_offset if _has_sequence(batch) else -1
    )
    time_type = "LogAppendTime" if batch.is_log_append_time else "CreateTime"
    horizon = f"OptionalLong[{batch.timestamp_ms}]" if batch.has_delete_horizon else _OPTIONAL_EMPTY
    fields = {
        "baseOffset": batch.base_offset,
        "lastOffset": batch.last_offset,
        "count": count,
        "baseSequence": batch.base_sequence,
        "lastSequence": last_sequence,
        "producerId": batch.producer_id,
        "producerEpoch": batch.producer_epoch,
        "partitionLeaderEpoch": batch.leader_epoch,
        "isTransactional": str(batch.is_transactional).lower(),
        "isControl": str(batch.is_control).lower(),
        "deleteHorizonMs": horizon,
        "position": position,
        time_type: batch.max_timestamp_ms,
        "size": batch.size_bytes,
        "magic": MAGIC,
        "compresscodec": batch.compression,
        "crc": batch.crc,
        "isvalid": "true",
    }
    return " ".join(f"{name}: {value}" for name, value in fields.items())


def record_line(record: LogRecord, sequence: int) -> str:
    """Return the line that Kafka's tool prints for a record."""
    headers = ",".join(name for name, _ in record.headers)
    return (
        f"| offset: {record.offset} CreateTime: {record.timestamp_ms} keySize: {_field_bytes(record.key)} "
        f"valueSize: {_field_bytes(record.value)} sequence: {sequence} headerKeys: [{headers}] "
        f"{_format_decoded(record)}"
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


def _format_decoded(record: LogRecord) -> str:
    """Return the key and the payload of a line; if they cannot be decoded, Kafka's error text."""
    try:
        decoded = decode_record(record.key, record.value)
    except DecodeError as error:
        return f"key: Error at offset {record.offset}, skipping. {error}"
    record_type = _record_type(record.key)
    if decoded is None:
        return f"key: Unknown record type {record_type} at offset {record.offset}, skipping."
    key = _compact_json({"type": str(record_type), "data": key_data(decoded)})
    if record.value is None or decoded.value is None:
        return f"key: {key} payload: <DELETE>"
    if isinstance(decoded.value, UnreadableValue):
        return f"key: Error at offset {record.offset}, skipping. {decoded.value.reason}"
    payload = _compact_json({"version": str(VALUE_VERSION), "data": value_data(decoded.value)})
    return f"key: {key} payload: {payload}"


def _record_type(key: bytes | None) -> int:
    return int.from_bytes((key or b"")[:2], signed=True)


def _compact_json(value: object) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def _field_bytes(value: bytes | None) -> int:
    return -1 if value is None else len(value)


def _has_sequence(batch: RecordBatch) -> bool:
    return batch.base_sequence >= 0
