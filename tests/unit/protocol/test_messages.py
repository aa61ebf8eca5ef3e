"""Properties of all messages besides the round trip: versions, headers, bounds and errors."""

import tracemalloc
from collections.abc import Callable
from types import ModuleType

import pytest

from protocol.errors import DecodeError, EncodeError, ErrorCode, UnsupportedVersionError
from protocol.messages import (
    APIS,
    api_versions,
    delete_share_group_state,
    find_coordinator,
    initialize_share_group_state,
    read_share_group_state,
    read_share_group_state_summary,
    request_header,
    request_header_version,
    response_header,
    response_header_version,
    sasl_authenticate,
    sasl_handshake,
    share_snapshot,
    share_update,
    write_share_group_state,
)
from protocol.wire import write_uvarint

TOPIC_ID = bytes(range(16))


def test_apis_have_kafkas_names_and_versions() -> None:
    assert {key: (api.name, api.min_version, api.max_version) for key, api in APIS.items()} == {
        10: ("FindCoordinator", 0, 6),
        17: ("SaslHandshake", 0, 1),
        18: ("ApiVersions", 0, 4),
        36: ("SaslAuthenticate", 0, 2),
        83: ("InitializeShareGroupState", 0, 0),
        84: ("ReadShareGroupState", 0, 0),
        85: ("WriteShareGroupState", 0, 1),
        86: ("DeleteShareGroupState", 0, 0),
        87: ("ReadShareGroupStateSummary", 0, 1),
    }
    for key, api in APIS.items():
        constants = api.module.API_KEY, api.module.MIN_VERSION, api.module.MAX_VERSION
        assert constants == (key, api.min_version, api.max_version)


@pytest.mark.parametrize(
    ("api_key", "version", "request_version", "response_version"),
    [
        (10, 2, 1, 0),
        (10, 3, 2, 1),
        (17, 1, 1, 0),
        (18, 2, 1, 0),
        (18, 3, 2, 0),
        (18, 4, 2, 0),
        # A future version: the header must be readable, so that the response can report the error.
        (18, 9, 2, 0),
        (36, 1, 1, 0),
        (36, 2, 2, 1),
        (83, 0, 2, 1),
        (85, 1, 2, 1),
    ],
)
def test_header_version_depends_on_api_and_version(
    api_key: int, version: int, request_version: int, response_version: int
) -> None:
    assert request_header_version(api_key, version) == request_version
    assert response_header_version(api_key, version) == response_version


@pytest.mark.parametrize("choose", [request_header_version, response_header_version])
def test_unknown_api_has_no_header_version(choose: Callable[[int, int], int]) -> None:
    with pytest.raises(UnsupportedVersionError, match="API key 3"):
        choose(3, 0)


@pytest.mark.parametrize("module", [api.module for api in APIS.values()])
def test_version_out_of_range_is_refused(module: ModuleType) -> None:
    for version in (module.MIN_VERSION - 1, module.MAX_VERSION + 1):
        for refuse, arguments in (
            (module.decode_request, (b"", 0)),
            (module.decode_response, (b"", 0)),
            (module.encode_request, (None,)),
            (module.encode_response, (None,)),
        ):
            with pytest.raises(UnsupportedVersionError) as refused:
                refuse(*arguments, version)
            assert refused.value.error_code == ErrorCode.UNSUPPORTED_VERSION


def test_header_version_out_of_range_is_refused() -> None:
    for version in (0, 3):
        with pytest.raises(UnsupportedVersionError):
            request_header.decode(bytes(20), 0, version)
        with pytest.raises(UnsupportedVersionError):
            request_header.encode(request_header.RequestHeader(1, 1, 1, None), version)
    for version in (-1, 2):
        with pytest.raises(UnsupportedVersionError):
            response_header.decode(bytes(20), 0, version)
        with pytest.raises(UnsupportedVersionError):
            response_header.encode(response_header.ResponseHeader(1), version)


def test_request_header_decode_returns_its_end() -> None:
    header = bytes.fromhex("0055 0001 00000007 0001 63 01 05 02 aabb")
    expected = request_header.RequestHeader(85, 1, 7, "c")
    assert request_header.decode(b"\xff" + header + b"body", 1, 2) == (expected, 1 + len(header))
    assert request_header.decode(header, 0, 1) == (expected, 11)


def test_client_id_may_be_null() -> None:
    header = request_header.RequestHeader(18, 3, 1, None)
    assert request_header.encode(header, 2) == bytes.fromhex("0012 0003 00000001 ffff 00")
    assert request_header.decode(bytes.fromhex("0012 0003 00000001 ffff 00"), 0, 2) == (header, 11)


@pytest.mark.parametrize("length", ["0002", "7fff", "fffe", "8000"])
def test_client_id_with_an_invalid_length_is_refused(length: str) -> None:
    for version in (1, 2):
        with pytest.raises(DecodeError):
            request_header.decode(bytes.fromhex(f"0012 0003 00000001 {length} 63"), 0, version)


def test_api_versions_features_are_read_in_any_order() -> None:
    """KIP-482 forbids tags out of order, but Kafka reads them, so this decoder does too."""
    wire = bytes.fromhex("0000 01 00000000 03 03 01 01 01 08 0000000000000009 00 08 02 02 66 0000 0001 00")
    decoded = api_versions.decode_response(wire, 0, 4)
    assert decoded == api_versions.ApiVersionsResponse(
        supported_features=[api_versions.SupportedFeatureKey("f", 0, 1)],
        finalized_features_epoch=9,
        zk_migration_ready=True,
    )


@pytest.mark.parametrize(("record", "fixed_bytes"), [(share_snapshot, 36), (share_update, 16)])
def test_known_tag_with_a_wrong_size_is_refused(record: ModuleType, fixed_bytes: int) -> None:
    value = bytes(fixed_bytes) + b"\x01"
    for tags in ("01 00 03 000005", "01 00 05 0000000005", "01 00 04 0000"):
        with pytest.raises(DecodeError):
            record.decode_value(value + bytes.fromhex(tags), 0)
    # The message has enough bytes, but some of them belong to the next field.
    with pytest.raises(DecodeError, match="tag 0 ends"):
        record.decode_value(value + bytes.fromhex("02 00 03 000005 05 00"), 0)


def test_unknown_tags_of_a_record_are_dropped() -> None:
    """Tag 1000 is encoded as e8 07. Tags 5 and 1001 are of a future release."""
    fixed = "00000000 00000001 00000000 0000000000000000 0000000000000000 0000000000000000 01"
    value = share_snapshot.ShareSnapshotValue(0, 1, 0, 0, 0, 0, b"", 5, 9)
    with_unknown = bytes.fromhex(fixed + "04 00 04 00000005 05 01 aa e807 04 00000009 e907 02 bbcc")
    known = bytes.fromhex(fixed + "02 00 04 00000005 e807 04 00000009")
    assert share_snapshot.decode_value(with_unknown, 0) == share_snapshot.decode_value(known, 0) == value
    assert share_snapshot.encode_value(value) == known


HUGE = "ffffffff0f"


@pytest.mark.parametrize(
    ("decode", "written"),
    [
        pytest.param(write_share_group_state.decode_request, f"02 67 {HUGE}", id="topics"),
        pytest.param(write_share_group_state.decode_request, f"02 67 02 {'00' * 16} {HUGE}", id="partitions"),
        pytest.param(
            write_share_group_state.decode_request,
            f"02 67 02 {'00' * 16} 02 {'00' * 24} {HUGE} {'00' * 500}",
            id="state batches",
        ),
        pytest.param(write_share_group_state.decode_request, f"{HUGE} 67", id="string"),
        pytest.param(write_share_group_state.decode_request, f"02 67 01 {HUGE}", id="tags"),
        pytest.param(write_share_group_state.decode_request, f"02 67 01 01 05 {HUGE}", id="tag size"),
        pytest.param(
            lambda buf, at, _: find_coordinator.decode_request(buf, at, 6), f"02 {HUGE}", id="strings"
        ),
        pytest.param(
            lambda buf, at, _: sasl_handshake.decode_response(buf, at, 1), "0000 7fffffff", id="legacy array"
        ),
        pytest.param(
            lambda buf, at, _: sasl_authenticate.decode_request(buf, at, 1), "7fffffff 00", id="legacy bytes"
        ),
        pytest.param(
            lambda buf, at, _: share_snapshot.decode_value(buf, at),
            f"{'00' * 36} 01 {HUGE} 0500",
            id="tags of a record",
        ),
    ],
)
def test_impossible_count_is_refused_without_allocation(
    decode: Callable[[bytes, int, int], object], written: str
) -> None:
    buf = bytes.fromhex(written)
    tracemalloc.start()
    try:
        with pytest.raises(DecodeError):
            decode(buf, 0, 1)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 100_000


def test_negative_length_other_than_null_is_refused() -> None:
    with pytest.raises(DecodeError, match="length -2"):
        find_coordinator.decode_response(bytes.fromhex("00000000 0000 fffe 00000000 0000 00000000"), 0, 1)


@pytest.mark.parametrize(
    ("decode", "written"),
    [
        pytest.param(write_share_group_state.decode_request, "00 01 00", id="string"),
        pytest.param(write_share_group_state.decode_request, "8000 01 00", id="string, long form"),
        pytest.param(write_share_group_state.decode_request, "02 67 00 00", id="array"),
        pytest.param(
            lambda buf, at, _: find_coordinator.decode_request(buf, at, 0), "ffff", id="legacy string"
        ),
        pytest.param(
            lambda buf, at, _: sasl_handshake.decode_response(buf, at, 1), "0000 ffffffff", id="legacy array"
        ),
        pytest.param(
            lambda buf, at, _: sasl_authenticate.decode_request(buf, at, 0), "ffffffff", id="legacy bytes"
        ),
    ],
)
def test_null_in_place_of_a_required_value_is_refused(
    decode: Callable[[bytes, int, int], object], written: str
) -> None:
    with pytest.raises(DecodeError):
        decode(bytes.fromhex(written), 0, 1)


@pytest.mark.parametrize(
    ("decode", "before", "behind"),
    [
        pytest.param(write_share_group_state.decode_request, "", "0100", id="Write"),
        pytest.param(
            lambda buf, at, _: read_share_group_state.decode_request(buf, at, 0), "", "0100", id="Read"
        ),
        pytest.param(
            lambda buf, at, _: initialize_share_group_state.decode_request(buf, at, 0),
            "",
            "0100",
            id="Initialize",
        ),
        pytest.param(
            lambda buf, at, _: delete_share_group_state.decode_request(buf, at, 0), "", "0100", id="Delete"
        ),
        pytest.param(
            lambda buf, at, _: read_share_group_state_summary.decode_request(buf, at, 0),
            "",
            "0100",
            id="Summary",
        ),
        pytest.param(
            lambda buf, at, _: find_coordinator.decode_request(buf, at, 3), "", "0200", id="coordinator's key"
        ),
        pytest.param(
            lambda buf, at, _: find_coordinator.decode_request(buf, at, 6),
            "02 02",
            "00",
            id="an element of an array",
        ),
        pytest.param(
            lambda buf, at, _: api_versions.decode_request(buf, at, 3), "02 67", "00", id="software version"
        ),
        pytest.param(
            write_share_group_state.decode_response,
            f"02 {'00' * 16} 02 {'00' * 6}",
            "00 00 00",
            id="a string that may be null",
        ),
    ],
)
def test_compact_string_is_at_most_32767_bytes_as_in_kafka(
    decode: Callable[[bytes, int, int], object], before: str, behind: str
) -> None:
    def encode_message(size: int) -> bytes:
        return bytes.fromhex(before) + write_uvarint(size + 1) + b"x" * size + bytes.fromhex(behind)

    decode(encode_message(32767), 0, 1)
    with pytest.raises(DecodeError, match="string of 32768 bytes"):
        decode(encode_message(32768), 0, 1)


def test_compact_bytes_may_be_longer_than_a_string() -> None:
    token = sasl_authenticate.SaslAuthenticateRequest(bytes(32768))
    assert sasl_authenticate.decode_request(sasl_authenticate.encode_request(token, 2), 0, 2) == token


def test_text_that_is_not_utf8_is_refused() -> None:
    with pytest.raises(DecodeError) as refused:
        write_share_group_state.decode_request(b"\x02\xff\x01\x00", 0, 1)
    assert refused.value.error_code == ErrorCode.INVALID_REQUEST


def encode_write_request(**changes: object) -> write_share_group_state.WriteShareGroupStateRequest:
    w = write_share_group_state
    partition = w.PartitionData(0, 1, 2, 3)
    topic = w.WriteStateData(TOPIC_ID, [partition])
    request = w.WriteShareGroupStateRequest("g", [topic])
    for name, value in changes.items():
        holder = next(each for each in (request, topic, partition) if hasattr(each, name))
        setattr(holder, name, value)
    return request


def test_legacy_string_is_at_most_32767_bytes() -> None:
    longest = find_coordinator.FindCoordinatorRequest("x" * 32767)
    assert find_coordinator.decode_request(find_coordinator.encode_request(longest, 0), 0, 0) == longest
    with pytest.raises(EncodeError):
        find_coordinator.encode_request(find_coordinator.FindCoordinatorRequest("x" * 32768), 0)


def test_field_missing_in_a_version_is_dropped_only_if_ignorable() -> None:
    """The delivery complete count is ignorable. The key type of FindCoordinator is not ignorable."""
    decoded = write_share_group_state.decode_request(
        write_share_group_state.encode_request(encode_write_request(delivery_complete_count=7), 0), 0, 0
    )
    assert decoded == encode_write_request(delivery_complete_count=-1)
    with pytest.raises(EncodeError, match="version 0 of FindCoordinatorRequest has no key_type"):
        find_coordinator.encode_request(find_coordinator.FindCoordinatorRequest("k", 2), 0)
    with pytest.raises(EncodeError, match="coordinator_keys"):
        find_coordinator.encode_request(find_coordinator.FindCoordinatorRequest(coordinator_keys=["k"]), 3)
    with pytest.raises(EncodeError, match="has no error_code"):
        find_coordinator.encode_response(find_coordinator.FindCoordinatorResponse(error_code=15), 4)


def test_default_lists_are_not_shared() -> None:
    first, second = find_coordinator.FindCoordinatorResponse(), find_coordinator.FindCoordinatorResponse()
    first.coordinators.append(find_coordinator.Coordinator())
    assert second.coordinators == []


def test_response_header_is_encoded_by_version() -> None:
    header = response_header.ResponseHeader(7)
    assert response_header.encode(header, 0).hex() == "00000007"
    assert response_header.encode(header, 1).hex() == "0000000700"
    assert response_header.decode(bytes.fromhex("00000007 01 05 01 aa ff"), 0, 1) == (header, 8)


@pytest.mark.parametrize("header", [request_header, response_header])
def test_header_with_a_tag_beyond_its_bytes_is_refused(header: ModuleType) -> None:
    fixed = bytes(10 if header is request_header else 4)
    version = 2 if header is request_header else 1
    with pytest.raises(DecodeError, match="ends at byte"):
        header.decode(fixed + bytes.fromhex("01 05 05 aa"), 0, version)
