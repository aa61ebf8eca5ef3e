"""Complete frames and records in Kafka's format, compared with hand-written bytes."""

from types import ModuleType

from protocol.frames import FrameReader
from protocol.messages import (
    find_coordinator,
    read_share_group_state,
    request_header,
    response_header,
    share_snapshot,
    share_update,
    write_share_group_state,
)
from protocol.messages.request_header import RequestHeader
from protocol.messages.response_header import ResponseHeader
from protocol.messages.share_snapshot import ShareSnapshotKey, ShareSnapshotValue
from protocol.messages.share_update import ShareUpdateKey, ShareUpdateValue
from protocol.state_batches import StateBatch, TaggedBatches, pack

TOPIC_ID = bytes.fromhex("82d6f6b2d198464faf599db3028ce6a0")
TOPIC = TOPIC_ID.hex()
KEY_TEXT = "gs1:gtb2stGYRk-vWZ2zAozmoA:0"


def frame_body(frame: str) -> bytes:
    """Return the frame without its size; assert that the size is correct."""
    (only,) = FrameReader(1 << 20).receive_data(bytes.fromhex(frame))
    return only


def assert_request(frame: str, header: RequestHeader, codec: ModuleType, message: object) -> None:
    """Assert that the frame decodes to the header and message, and that they encode to the frame."""
    request = frame_body(frame)
    got_header, offset = request_header.decode(request, 0, 2)
    assert got_header == header
    assert codec.decode_request(request, offset, header.request_api_version) == message
    encoded = codec.encode_request(message, header.request_api_version)
    assert request_header.encode(header, 2) + encoded == request


def assert_response(
    frame: str, correlation_id: int, codec: ModuleType, message: object, version: int
) -> None:
    """Assert that the frame decodes to the correlation id and message, and that they encode to the frame."""
    response = frame_body(frame)
    header, offset = response_header.decode(response, 0, 1)
    assert header == ResponseHeader(correlation_id)
    assert codec.decode_response(response, offset, version) == message
    assert response_header.encode(header, 1) + codec.encode_response(message, version) == response


def test_write_share_group_state() -> None:
    w = write_share_group_state
    partition = w.PartitionData(0, 2, 4, 12, 4, pack([StateBatch(12, 15, 2, 1)]))
    assert_request(
        "00000052 0055 0001 00000007 0001 63 00"
        f"04 677331 02 {TOPIC} 02 00000000 00000002 00000004 000000000000000c 00000004"
        "02 000000000000000c 000000000000000f 02 0001 00 00 00 00",
        RequestHeader(85, 1, 7, "c"),
        w,
        w.WriteShareGroupStateRequest("gs1", [w.WriteStateData(TOPIC_ID, [partition])]),
    )
    assert_response(
        f"00000021 00000007 00 02 {TOPIC} 02 00000000 0000 00 00 00 00",
        7,
        w,
        w.WriteShareGroupStateResponse([w.WriteStateResult(TOPIC_ID, [w.PartitionResult(0)])]),
        1,
    )


def test_read_share_group_state() -> None:
    r = read_share_group_state
    assert_request(
        f"0000002d 0054 0000 00000008 0001 63 00 04 677331 02 {TOPIC} 02 00000000 00000004 00 00 00",
        RequestHeader(84, 0, 8, "c"),
        r,
        r.ReadShareGroupStateRequest("gs1", [r.ReadStateData(TOPIC_ID, [r.PartitionData(0, 4)])]),
    )
    batches = pack([StateBatch(12, 15, 2, 1), StateBatch(20, 29, 2, 3)])
    result = r.PartitionResult(0, 0, None, 2, 12, batches)
    assert_response(
        f"00000056 00000008 00 02 {TOPIC} 02 00000000 0000 00 00000002 000000000000000c 03"
        "000000000000000c 000000000000000f 02 0001 00 0000000000000014 000000000000001d 02 0003 00 00 00 00",
        8,
        r,
        r.ReadShareGroupStateResponse([r.ReadStateResult(TOPIC_ID, [result])]),
        0,
    )


def test_find_coordinator() -> None:
    f = find_coordinator
    key = KEY_TEXT.encode().hex()
    assert_request(
        f"0000002c 000a 0006 00000009 0001 63 00 02 02 1d {key} 00",
        RequestHeader(10, 6, 9, "c"),
        f,
        f.FindCoordinatorRequest(key_type=2, coordinator_keys=[KEY_TEXT]),
    )
    assert_response(
        f"00000037 00000009 00 00000000 02 1d {key} 00000001 03 6231 00002384 0000 01 00 00",
        9,
        f,
        f.FindCoordinatorResponse(coordinators=[f.Coordinator(KEY_TEXT, 1, "b1", 9092)]),
        6,
    )


def test_record_keys() -> None:
    key = bytes.fromhex(f"0003 677331 {TOPIC} 00000000")
    assert share_snapshot.decode_key(key, 0) == ShareSnapshotKey("gs1", TOPIC_ID, 0)
    assert share_snapshot.encode_key(ShareSnapshotKey("gs1", TOPIC_ID, 0)) == key
    assert share_update.decode_key(key, 0) == ShareUpdateKey("gs1", TOPIC_ID, 0)
    assert share_update.encode_key(ShareUpdateKey("gs1", TOPIC_ID, 0)) == key
    assert (share_snapshot.RECORD_TYPE, share_update.RECORD_TYPE) == (0, 1)
    assert (share_snapshot.VALUE_VERSION, share_update.VALUE_VERSION) == (0, 0)


def assert_snapshot(written: str, value: ShareSnapshotValue) -> None:
    assert share_snapshot.decode_value(bytes.fromhex(written), 2) == value
    assert share_snapshot.encode_value(value) == bytes.fromhex(written)[2:]


def assert_update(written: str, value: ShareUpdateValue) -> None:
    assert share_update.decode_value(bytes.fromhex(written), 2) == value
    assert share_update.encode_value(value) == bytes.fromhex(written)[2:]


def test_share_snapshot() -> None:
    batches = pack([StateBatch(10, 19, 0, 1), StateBatch(20, 29, 2, 3)])
    assert_snapshot(
        "0000 00000003 00000002 00000004 000000000000000a 0000018bcfe56800 0000018bcfe9fbe0"
        "03 000000000000000a 0000000000000013 00 0001 00 0000000000000014 000000000000001d 02 0003 00"
        "01 00 04 00000005",
        ShareSnapshotValue(3, 2, 4, 10, 1_700_000_000_000, 1_700_000_300_000, batches, 5),
    )


def test_share_snapshot_of_a_first_initialize() -> None:
    assert_snapshot(
        "0000 00000000 00000001 00000000 ffffffffffffffff 0000018bcfe56800 0000018bcfe56800 01 00",
        ShareSnapshotValue(0, 1, 0, -1, 1_700_000_000_000, 1_700_000_000_000, b""),
    )


def test_share_snapshot_with_tag_1000_between_unknown_tags() -> None:
    """Tag 1000 is encoded as e8 07, in its order among tags of future releases."""
    assert_snapshot(
        "0000 00000000 00000001 00000000 0000000000000000 0000000000000000 0000000000000000 01"
        "04 00 04 00000005 05 01 aa e807 04 00000009 e907 02 bbcc",
        ShareSnapshotValue(0, 1, 0, 0, 0, 0, b"", 5, 9, ((5, b"\xaa"), (1001, b"\xbb\xcc"))),
    )
    assert_snapshot(
        "0000 00000000 00000001 00000000 0000000000000000 0000000000000000 0000000000000000 01"
        "01 e807 04 00000009",
        ShareSnapshotValue(0, 1, 0, 0, 0, 0, b"", leader_epoch_max=9),
    )


def test_share_update() -> None:
    assert_update(
        "0000 00000003 00000004 000000000000000c 02 000000000000000c 000000000000000f 02 0001 00"
        "01 00 04 00000004",
        ShareUpdateValue(3, 4, 12, pack([StateBatch(12, 15, 2, 1)]), 4),
    )


def test_share_update_of_a_read_that_raised_the_leader_epoch() -> None:
    assert_update(
        "0000 00000003 00000005 000000000000000c 01 01 00 04 00000004", ShareUpdateValue(3, 5, 12, b"", 4)
    )


def test_share_update_with_tags_in_the_second_of_three_batches() -> None:
    written = bytes.fromhex(
        "00000003 00000005 000000000000000c 04"
        "0000000000000001 0000000000000001 00 0001 00"
        "0000000000000002 0000000000000002 00 0001 01 05 01 ff"
        "0000000000000003 0000000000000003 00 0001 00 00"
    )
    value = share_update.decode_value(written, 0)
    packed = pack(StateBatch(at, at, 0, 1) for at in (1, 2, 3))
    assert value.state_batches == TaggedBatches(packed, {1: b"\x01\x05\x01\xff"})
    assert share_update.encode_value(value) == written
