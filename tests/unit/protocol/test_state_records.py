"""How the text of a share-partition is read, as SharePartitionKey.getInstance of Kafka does; empty values."""

import pytest

from protocol.messages.share_update import ShareUpdateValue
from protocol.state_records import (
    SharePartitionKey,
    StateRecord,
    UnreadableValue,
    decode_record,
    encode_record,
    topic_id_text,
)

TOPIC_ID = bytes(range(16))
BEHIND_GROUP = f":{topic_id_text(TOPIC_ID)}:1"


@pytest.mark.parametrize("group", ["\u3000", "\u00a0", "\u0085", "\u2028", " a ", "\u0021", "a:b"])
def test_a_group_is_all_that_java_does_not_trim_away(group: str) -> None:
    assert SharePartitionKey.parse(group + BEHIND_GROUP) == SharePartitionKey(group, TOPIC_ID, 1)


@pytest.mark.parametrize("group", ["", " ", "\t \n", "\0", "\x1f\x20"])
def test_a_group_that_java_trims_away_is_none(group: str) -> None:
    with pytest.raises(ValueError, match="no group id"):
        SharePartitionKey.parse(group + BEHIND_GROUP)


@pytest.mark.parametrize(
    ("padding", "digits", "partition"),
    [("==", "1", 1), ("", "+01", 1), ("", "-2", -2), ("", "\u0661\u0662", 12), ("", "\uff13", 3)],
)
def test_what_java_reads_as_padding_and_as_digits(padding: str, digits: str, partition: int) -> None:
    text = f"g:{topic_id_text(TOPIC_ID)}{padding}:{digits}"
    assert SharePartitionKey.parse(text) == SharePartitionKey("g", TOPIC_ID, partition)


@pytest.mark.parametrize(
    ("padding", "digits"),
    [("=", "1"), ("", "\u00b2"), ("", "\U0001d7cf"), ("", "-"), ("", "1_0"), ("", " 1")],
)
def test_what_java_reads_as_neither(padding: str, digits: str) -> None:
    with pytest.raises(ValueError, match="is not a"):
        SharePartitionKey.parse(f"g:{topic_id_text(TOPIC_ID)}{padding}:{digits}")


@pytest.mark.parametrize("digits", ["2147483648", "-2147483649"])
def test_a_partition_has_32_bits(digits: str) -> None:
    with pytest.raises(ValueError, match="out of range"):
        SharePartitionKey.parse(f"g:{topic_id_text(TOPIC_ID)}:{digits}")


@pytest.mark.parametrize("value", [b"", b"\0", None])
def test_an_update_with_nothing_in_it_deletes_nothing(value: bytes | None) -> None:
    key, _ = encode_record(StateRecord(SharePartitionKey("g", TOPIC_ID, 1), ShareUpdateValue(1, 2, 3, b"")))
    record = decode_record(key, value)
    assert record is not None
    assert record.key == SharePartitionKey("g", TOPIC_ID, 1)
    assert isinstance(record.value, UnreadableValue)
