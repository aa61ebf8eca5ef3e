"""Packed state batches, with and without tagged fields."""

import copy
import pickle

import pytest

from protocol.errors import DecodeError
from protocol.messages import write_share_group_state as write_api
from protocol.state_batches import (
    BATCH_BYTES,
    NO_TAGS,
    StateBatch,
    TaggedBatches,
    pack,
    read_tagged,
    read_untagged,
    unpack,
    write_tagged,
)

BATCHES = [StateBatch(10, 19, 0, 1), StateBatch(-(2**63), 2**63 - 1, -128, 32767), StateBatch(20, 29, 4, -1)]
PACKED = bytes.fromhex(
    "000000000000000a 0000000000000013 00 0001 00"
    "8000000000000000 7fffffffffffffff 80 7fff 00"
    "0000000000000014 000000000000001d 04 ffff 00"
)
# The second batch has one tagged field: tag 5, two bytes.
SECTION = bytes.fromhex("01 05 02 aabb")
TAGGED_WIRE = PACKED[:39] + SECTION + PACKED[40:]


def test_batches_are_packed_and_unpacked() -> None:
    assert pack(BATCHES) == PACKED
    assert unpack(PACKED) == BATCHES
    assert len(PACKED) == 3 * BATCH_BYTES
    assert pack([]) == b""
    assert unpack(b"") == []


def test_incomplete_batch_is_refused() -> None:
    with pytest.raises(DecodeError):
        unpack(PACKED[:-1])


def test_array_without_tags_is_plain_bytes() -> None:
    packed, at = read_tagged(b"\xff\x04" + PACKED + b"\xff", 1)
    assert (packed, at) == (PACKED, 62)
    assert type(packed) is bytes


def test_array_with_tags_keeps_them() -> None:
    packed, at = read_tagged(b"\x04" + TAGGED_WIRE + b"\xff", 0)
    assert packed == TaggedBatches(PACKED, {1: SECTION})
    assert at == 65
    assert write_tagged(packed) == TAGGED_WIRE


def test_overlong_empty_tag_section_is_kept() -> None:
    wire = PACKED[:19] + b"\x80\x00"
    packed, at = read_tagged(b"\x02" + wire, 0)
    assert (write_tagged(packed), at) == (wire, 22)


def test_tags_can_be_dropped() -> None:
    packed, at = read_untagged(b"\x04" + TAGGED_WIRE, 0)
    assert (packed, at) == (PACKED, 65)
    assert type(packed) is bytes


def test_plain_batches_are_encoded_unchanged() -> None:
    assert write_tagged(PACKED) is PACKED


@pytest.mark.parametrize(
    "wire",
    [
        pytest.param(b"\x00", id="null"),
        pytest.param(b"\x04" + PACKED[:-1], id="truncated"),
        pytest.param(b"\xff\xff\xff\xff\x0f" + PACKED, id="impossible number of batches"),
        pytest.param(b"\x02" + PACKED[:19] + b"\x01\x05\x02\xaa", id="truncated tags"),
    ],
)
def test_malformed_array_is_refused(wire: bytes) -> None:
    with pytest.raises(DecodeError):
        read_tagged(wire, 0)


def test_tagged_batches_differ_from_plain_ones() -> None:
    tagged = TaggedBatches(PACKED, {1: SECTION})
    assert tagged == TaggedBatches(PACKED, {1: SECTION})
    assert tagged != TaggedBatches(PACKED, {0: SECTION})
    assert tagged != TaggedBatches(PACKED[20:], {1: SECTION})
    assert tagged != PACKED
    assert bytes.__eq__(tagged, PACKED)
    assert hash(tagged) == hash(TaggedBatches(PACKED, {1: SECTION}))


def test_slice_of_tagged_batches_is_plain_bytes() -> None:
    assert type(TaggedBatches(PACKED, {1: SECTION})[20:40]) is bytes


def test_tagged_batches_survive_copy_and_pickle() -> None:
    tagged = TaggedBatches(PACKED, {1: SECTION})
    for twin in (copy.copy(tagged), copy.deepcopy(tagged), pickle.loads(pickle.dumps(tagged))):
        assert twin == tagged


def test_no_tags_has_one_zero_byte_for_each_batch() -> None:
    assert NO_TAGS[0] is None
    assert list(NO_TAGS[1:]) == [b"\0" * count for count in range(127)]


@pytest.mark.parametrize("count", [1, 2, 3, 126, 127, 130])
def test_request_with_a_tagged_batch_is_decoded_as_without_tags(count: int) -> None:
    """The first or the last batch has tags. The bytes before the first batch are zero."""
    plain = pack([StateBatch(1, 1, 1, 1)] * count)
    request = write_api.WriteShareGroupStateRequest(
        "g", [write_api.WriteStateData(bytes(16), [write_api.PartitionData(0, 0, 0, 0, -1, plain)])]
    )
    encoded = write_api.encode_request(request, 0)
    begin = encoded.index(plain)
    for place in {0, count - 1}:
        at = begin + place * BATCH_BYTES + BATCH_BYTES - 1
        tagged = encoded[:at] + SECTION + encoded[at + 1 :]
        assert write_api.decode_request(tagged, 0, 0) == request
