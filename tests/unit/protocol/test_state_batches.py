"""Packed state batches. The decoder drops tagged fields of state batches, because Kafka defines none."""

import pytest

from protocol.errors import DecodeError, TooManyElementsError
from protocol.messages import share_update
from protocol.messages import write_share_group_state as write_api
from protocol.messages.share_update import ShareUpdateValue
from protocol.state_batches import BATCH_BYTES, NO_TAGS, StateBatch, pack, unpack

BATCHES = [StateBatch(10, 19, 0, 1), StateBatch(-(2**63), 2**63 - 1, -128, 32767), StateBatch(20, 29, 4, -1)]
PACKED = bytes.fromhex(
    "000000000000000a 0000000000000013 00 0001 00"
    "8000000000000000 7fffffffffffffff 80 7fff 00"
    "0000000000000014 000000000000001d 04 ffff 00"
)
# One tagged field: tag 5, two bytes.
SECTION = bytes.fromhex("01 05 02 aabb")


def encode_write_request(batches: bytes) -> write_api.WriteShareGroupStateRequest:
    return write_api.WriteShareGroupStateRequest(
        "g", [write_api.WriteStateData(bytes(16), [write_api.PartitionData(0, 0, 0, 0, -1, batches)])]
    )


def test_batches_are_packed_and_unpacked() -> None:
    assert pack(BATCHES) == PACKED
    assert unpack(PACKED) == BATCHES
    assert len(PACKED) == 3 * BATCH_BYTES
    assert pack([]) == b""
    assert unpack(b"") == []


def test_incomplete_batch_is_refused() -> None:
    with pytest.raises(DecodeError):
        unpack(PACKED[:-1])


def test_batches_without_tags_have_one_zero_tag_byte_each() -> None:
    assert NO_TAGS[0] is None
    assert list(NO_TAGS[1:]) == [b"\0" * count for count in range(127)]


@pytest.mark.parametrize(
    "array",
    [
        pytest.param(b"\x00", id="null"),
        pytest.param(b"\x80\x00", id="null, long form"),
        pytest.param(b"\x04" + PACKED[:-1], id="truncated"),
        pytest.param(b"\xff\xff\xff\xff\x0f" + PACKED, id="impossible number of batches"),
        pytest.param(b"\x02" + PACKED[:19] + b"\x01\x05\x02\xaa", id="truncated tags"),
    ],
)
def test_malformed_array_is_refused(array: bytes) -> None:
    update = share_update.encode_value(ShareUpdateValue(0, 0, 0, b""))
    assert update[-2:] == b"\x01\x00"
    with pytest.raises(DecodeError):
        share_update.decode_value(update[:-2] + array, 0)


@pytest.mark.parametrize("section", [SECTION, b"\x80\x00"])
@pytest.mark.parametrize("count", [1, 2, 3, 126, 127, 130])
def test_tagged_batch_is_decoded_as_without_tags(count: int, section: bytes) -> None:
    """The first or the last batch has tags. The bytes before the first batch are zero."""
    plain = pack([StateBatch(1, 1, 1, 1)] * count)
    request, update = encode_write_request(plain), ShareUpdateValue(0, 0, 0, plain)
    encoded_request, encoded_update = write_api.encode_request(request, 0), share_update.encode_value(update)
    for place in {0, count - 1}:

        def tag_batch(encoded: bytes, place: int = place) -> bytes:
            at = encoded.index(plain) + place * BATCH_BYTES + BATCH_BYTES - 1
            return encoded[:at] + section + encoded[at + 1 :]

        assert write_api.decode_request(tag_batch(encoded_request), 0, 0) == request
        assert share_update.decode_value(tag_batch(encoded_update), 0) == update


@pytest.mark.parametrize(("count", "elements"), [(126, 2), (127, 2 + 127 // 16), (3200, 2 + 200)])
def test_batches_without_tags_count_as_a_sixteenth_of_an_element(count: int, elements: int) -> None:
    """The topic and the partition count as one element each. Arrays of up to 126 batches add no element."""
    plain = pack([StateBatch(1, 1, 1, 1)] * count)
    encoded = write_api.encode_request(encode_write_request(plain), 0)
    write_api.decode_request(encoded, 0, 0, elements)
    with pytest.raises(TooManyElementsError):
        write_api.decode_request(encoded, 0, 0, elements - 1)


def test_batch_in_an_array_with_tags_counts_as_one_element_and_each_tag_as_one() -> None:
    encoded = write_api.encode_request(encode_write_request(PACKED), 0)
    at = encoded.index(PACKED) + BATCH_BYTES - 1
    tagged = encoded[:at] + SECTION + encoded[at + 1 :]
    write_api.decode_request(tagged, 0, 0, 2 + 3 + 1)
    with pytest.raises(TooManyElementsError):
        write_api.decode_request(tagged, 0, 0, 2 + 3)
