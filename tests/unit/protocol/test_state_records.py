"""The text form of a share-partition key equals that of Kafka's SharePartitionKey. Values may be empty."""

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
def test_group_id_keeps_characters_that_java_does_not_trim(group: str) -> None:
    assert SharePartitionKey.parse(group + BEHIND_GROUP) == SharePartitionKey(group, TOPIC_ID, 1)


@pytest.mark.parametrize("group", ["", " ", "\t \n", "\0", "\x1f\x20"])
def test_group_id_that_java_trims_to_nothing_is_refused(group: str) -> None:
    with pytest.raises(ValueError, match="no group id"):
        SharePartitionKey.parse(group + BEHIND_GROUP)


@pytest.mark.parametrize(
    ("padding", "digits", "partition"),
    [
        ("==", "1", 1),
        ("", "+01", 1),
        ("", "-2", -2),
        ("", "\u0661\u0662", 12),
        ("", "\uff13", 3),
        ("", f"{1:032}", 1),
    ],
)
def test_padding_and_digits_are_parsed_as_in_java(padding: str, digits: str, partition: int) -> None:
    text = f"g:{topic_id_text(TOPIC_ID)}{padding}:{digits}"
    assert SharePartitionKey.parse(text) == SharePartitionKey("g", TOPIC_ID, partition)


@pytest.mark.parametrize(
    ("padding", "digits"),
    [("=", "1"), ("", "\u00b2"), ("", "\U0001d7cf"), ("", "-"), ("", "1_0"), ("", " 1"), ("", f"{1:033}")],
)
def test_padding_and_digits_that_java_refuses_are_refused(padding: str, digits: str) -> None:
    with pytest.raises(ValueError, match="is not a"):
        SharePartitionKey.parse(f"g:{topic_id_text(TOPIC_ID)}{padding}:{digits}")


@pytest.mark.parametrize("digits", ["2147483648", "-2147483649"])
def test_partition_must_fit_into_32_bits(digits: str) -> None:
    with pytest.raises(ValueError, match="out of range"):
        SharePartitionKey.parse(f"g:{topic_id_text(TOPIC_ID)}:{digits}")


@pytest.mark.parametrize("value", [b"", b"\0", None])
def test_update_with_an_empty_value_is_not_a_tombstone(value: bytes | None) -> None:
    key, _ = encode_record(StateRecord(SharePartitionKey("g", TOPIC_ID, 1), ShareUpdateValue(1, 2, 3, b"")))
    record = decode_record(key, value)
    assert record is not None
    assert record.key == SharePartitionKey("g", TOPIC_ID, 1)
    assert isinstance(record.value, UnreadableValue)
