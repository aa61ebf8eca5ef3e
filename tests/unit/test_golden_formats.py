"""Formats of records, batches and group messages: this release writes and reads those of earlier releases.

Each file in tests/golden has a line `name: bytes` for each example. To record a new format, add it to FORMATS
and run `python -m tests.unit.test_golden_formats FILE`.
"""

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from coordinator.cluster.kafka.broker_results import ProducerId
from coordinator.cluster.ownership.base import Replica
from coordinator.cluster.ownership.messages import (
    AssignmentMessage,
    GroupSettings,
    MemberMetadata,
    decode_assignment,
    decode_metadata,
    encode_message,
)
from coordinator.log.claims import (
    AcceptedClaim,
    FencingFilter,
    encode_claim,
    encode_release,
    encode_renewal,
    is_release,
    owner_epoch_headers,
    read_claim,
    read_owner_epoch,
)
from coordinator.log.kafka.batches import encode_owner_batch
from coordinator.log.kafka.ownership import Ownership
from protocol.errors import ErrorCode
from protocol.messages.share_snapshot import ShareSnapshotValue
from protocol.messages.share_update import ShareUpdateValue
from protocol.record_batch import LogRecord, decode_batches
from protocol.state_batches import StateBatch, pack
from protocol.state_records import SharePartitionKey, StateRecord, decode_record, encode_record
from tests.builders import TOPIC_ID

GOLDEN = Path(__file__).parents[1] / "golden"
KEY = SharePartitionKey("grüße", TOPIC_ID, 2**31 - 1)
BATCHES = pack([StateBatch(0, 2**62, 0, 1), StateBatch(2**62 + 1, 2**63 - 1, 4, 2**15 - 1)])
OWNER, LEASE_MS = "host:9095 (7)", 9_000

STATE_RECORDS: dict[str, StateRecord] = {
    "snapshot": StateRecord(
        KEY, ShareSnapshotValue(3, 4, 5, 6, 1_700_000_000_000, 1_700_000_000_001, BATCHES, 7)
    ),
    "snapshot without batches": StateRecord(KEY, ShareSnapshotValue(0, 0, 0, -1, 1, 1, b"", -1)),
    "update": StateRecord(KEY, ShareUpdateValue(3, 5, 6, BATCHES, 7)),
    "tombstone": StateRecord(KEY, None),
}
GROUP_MESSAGES: dict[str, MemberMetadata | AssignmentMessage] = {
    "metadata": MemberMetadata(
        setting=GroupSettings("_share-coordinator-state", 50),
        replica=Replica("a1b2", "host-1:9095", "https://host-1:9096", 3, 4),
        started_ms=1_700_000_000_000,
        ready=True,
        draining=True,
        owned=(0, 7, 49),
        assignment_generation=12,
        lease_is_fresh=True,
        wishes={7: "c3d4"},
        unreached=(2,),
        joins=5,
    ),
    "metadata of a new member": MemberMetadata(
        setting=GroupSettings("_share-coordinator-state", 50), replica=Replica("a1b2", "host-1:9095")
    ),
    "assignment": AssignmentMessage(
        generation=13,
        instance="a1b2",
        owned=(0, 7),
        handed_over=(7,),
        unreleased=(7,),
        refused="",
        double=False,
    ),
    "refused assignment": AssignmentMessage(
        generation=13, instance="a1b2", refused="it keeps state", double=True
    ),
}


def format_record(record: tuple[bytes, bytes | None]) -> str:
    """Return key and value of a record as hexadecimal text."""
    key, value = record
    return f"{key.hex()} {'null' if value is None else value.hex()}"


def parse_record(text: str) -> LogRecord:
    """Return a log record with the key and value in the text."""
    key, value = text.split(" ")
    return LogRecord(5, 0, bytes.fromhex(key), None if value == "null" else bytes.fromhex(value), ())


def format_state_records() -> dict[str, str]:
    return {name: format_record(encode_record(record)) for name, record in STATE_RECORDS.items()}


def format_claim_records() -> dict[str, str]:
    return {
        "claim": format_record(encode_claim(7, OWNER, LEASE_MS, TOPIC_ID)),
        "release": format_record(encode_release(7)),
        "renewal": format_record(encode_renewal(7, LEASE_MS)),
    }


def format_owner_batch() -> dict[str, str]:
    ownership = Ownership(7, 11, ProducerId(ErrorCode.NONE, 4_000, 2))
    ownership.sequence = 6
    records = [encode_record(record) for record in STATE_RECORDS.values()]
    return {"batch": encode_owner_batch(ownership, records, 1_700_000_000_000).hex()}


def format_group_messages() -> dict[str, str]:
    return {name: encode_message(message).decode() for name, message in GROUP_MESSAGES.items()}


FORMATS: Mapping[str, Callable[[], dict[str, str]]] = {
    "state-records-0.txt": format_state_records,
    "claims-1.txt": format_claim_records,
    "owner-batch-2.txt": format_owner_batch,
    "group-messages-2.txt": format_group_messages,
}


def read_golden(file: str) -> dict[str, str]:
    """Return the recorded text of each example by name."""
    lines = (GOLDEN / file).read_text("utf-8").splitlines()
    return dict(line.split(": ", 1) for line in lines)


@pytest.mark.parametrize("file", FORMATS)
def test_encoded_examples_equal_the_recorded_bytes(file: str) -> None:
    assert FORMATS[file]() == read_golden(file)


def test_recorded_state_records_are_decoded() -> None:
    for name, text in read_golden("state-records-0.txt").items():
        record = parse_record(text)
        assert decode_record(record.key, record.value) == STATE_RECORDS[name]


@pytest.mark.parametrize(
    ("file", "lease_ms", "topic_id"),
    [("claims-0.txt", 10_000, bytes(16)), ("claims-1.txt", LEASE_MS, TOPIC_ID)],
)
def test_recorded_claims_are_decoded(file: str, lease_ms: int, topic_id: bytes) -> None:
    claim = parse_record(read_golden(file)["claim"])
    assert read_claim(claim) == (lease_ms, topic_id, OWNER)
    accepted = FencingFilter()
    assert accepted.accepts(claim._replace(headers=owner_epoch_headers(11)))
    assert isinstance(accepted.claim, AcceptedClaim)
    release = parse_record(read_golden("claims-1.txt")["release"])
    assert is_release(release)


def test_recorded_batch_of_an_owner_is_decoded() -> None:
    (batch,) = decode_batches(bytes.fromhex(read_golden("owner-batch-2.txt")["batch"]))
    assert (batch.producer_id, batch.producer_epoch, batch.base_sequence) == (4_000, 2, 6)
    found = [decode_record(record.key, record.value) for record in batch.records]
    assert found == [*STATE_RECORDS.values()]
    assert {read_owner_epoch(record) for record in batch.records} == {11}


def test_recorded_group_messages_are_decoded() -> None:
    for name, text in read_golden("group-messages-2.txt").items():
        read: Callable[[bytes], Any] = decode_metadata if "metadata" in name else decode_assignment
        assert read(text.encode()) == GROUP_MESSAGES[name]
        # Later releases may append elements, which this release ignores.
        assert read(text.encode()[:-1] + b',"new"]') == GROUP_MESSAGES[name]


if __name__ == "__main__":
    examples = FORMATS[sys.argv[1]]()
    with (GOLDEN / sys.argv[1]).open("x", encoding="utf-8") as recorded:
        recorded.writelines(f"{name}: {text}\n" for name, text in examples.items())
