"""Error codes, and variable-length integers with hand-written bytes."""

import pytest
from aiokafka import errors

from protocol.errors import DecodeError, EncodeError, ErrorCode
from protocol.wire import SHORT_UVARINTS, read_uvarint, write_uvarint, write_varint

UVARINTS = [
    (0, "00"),
    (127, "7f"),
    (128, "8001"),
    (1000, "e807"),
    (16_383, "ff7f"),
    (16_384, "808001"),
    (2**32 - 1, "ffffffff0f"),
]
VARINTS = [
    (0, "00"),
    (-1, "01"),
    (1, "02"),
    (63, "7e"),
    (-64, "7f"),
    (64, "8001"),
    (2**63 - 1, "feffffffffffffffff01"),
    (-(2**63), "ffffffffffffffffff01"),
]


@pytest.mark.parametrize(("number", "written"), UVARINTS)
def test_unsigned_varint_is_encoded_and_decoded(number: int, written: str) -> None:
    assert write_uvarint(number).hex() == written
    assert read_uvarint(b"\xff" + bytes.fromhex(written) + b"\xff", 1) == (number, 1 + len(written) // 2)


@pytest.mark.parametrize(("number", "written"), VARINTS)
def test_signed_varint_is_encoded(number: int, written: str) -> None:
    assert write_varint(number).hex() == written


def test_table_of_short_varints_is_correct() -> None:
    assert list(SHORT_UVARINTS) == [write_uvarint(number) for number in range(128)]


def test_overlong_varint_is_decoded() -> None:
    assert read_uvarint(b"\x81\x80\x00", 0) == (1, 3)


@pytest.mark.parametrize("written", ["8080808010", "ffffffffff0f", "808080808000"])
def test_unsigned_varint_over_32_bits_is_refused(written: str) -> None:
    with pytest.raises(DecodeError):
        read_uvarint(bytes.fromhex(written), 0)


@pytest.mark.parametrize(
    ("write", "number"),
    [(write_uvarint, -1), (write_uvarint, 2**32), (write_varint, -(2**63) - 1), (write_varint, 2**63)],
)
def test_number_out_of_range_is_not_encoded(write, number: int) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(EncodeError):
        write(number)


def test_truncated_varint_raises_index_error() -> None:
    with pytest.raises(IndexError):
        read_uvarint(b"\x80", 0)


def test_error_codes_are_kafkas() -> None:
    """aiokafka has its own table, which lacks the newest error codes and has a few outdated names."""
    known = {one.errno: one.message for one in vars(errors).values() if hasattr(one, "errno")}
    assert {code.name: code.value for code in ErrorCode if known.get(code.value) != code.name} == {
        **{"UNKNOWN_SERVER_ERROR": -1, "NONE": 0, "NOT_LEADER_OR_FOLLOWER": 6, "MESSAGE_TOO_LARGE": 10},
        **{"NETWORK_EXCEPTION": 13, "INVALID_TOPIC_EXCEPTION": 17, "FENCED_LEADER_EPOCH": 74},
        **{"UNKNOWN_LEADER_EPOCH": 75, "GROUP_MAX_SIZE_REACHED": 81, "FENCED_INSTANCE_ID": 82},
        **{
            "INVALID_RECORD": 87,
            "PRODUCER_FENCED": 90,
            "UNKNOWN_TOPIC_ID": 100,
            "INCONSISTENT_TOPIC_ID": 103,
        },
        "FENCED_STATE_EPOCH": 124,
    }
