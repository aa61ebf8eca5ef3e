"""Build request frames that are expensive to process, with as many elements as fit into a frame."""

from collections.abc import Callable, Iterator
from functools import partial
from struct import Struct

from protocol.wire import write_uvarint

_HEADER = Struct(">hhih")
_SIZE = Struct(">i")
_TOPIC_ID = bytes(range(16))
_GROUP = b"\x02g"

FIND_COORDINATOR, SASL_HANDSHAKE, API_VERSIONS, SASL_AUTHENTICATE = 10, 17, 18, 36
INITIALIZE, READ, WRITE, DELETE, SUMMARY = 83, 84, 85, 86, 87


def make_frame(
    api_key: int, version: int, body: bytes, *, flexible: bool = True, client_id: bytes = b"load"
) -> bytes:
    """Return a request frame, which begins with its size."""
    header = _HEADER.pack(api_key, version, 7, len(client_id)) + client_id + (b"\0" if flexible else b"")
    return _SIZE.pack(len(header) + len(body)) + header + body


def partition_fields(api_key: int, partition: int) -> bytes:
    """Return the smallest encoding of one partition in a request of the RPC, including tagged fields."""
    number = partition.to_bytes(4, "big")
    if api_key == INITIALIZE:
        return number + (1).to_bytes(4, "big") + bytes(8) + b"\0"
    if api_key == WRITE:
        return number + bytes(8) + bytes(8) + b"\x01\0"
    if api_key in (READ, SUMMARY):
        return number + bytes(4) + b"\0"
    return number + b"\0"


def make_request_with_partitions(api_key: int, count: int, group: bytes = b"g") -> bytes:
    """Return a request for `count` partitions of one topic, in version 0."""
    partitions = b"".join(partition_fields(api_key, number) for number in range(count))
    group = write_uvarint(len(group) + 1) + group
    topic = _TOPIC_ID + write_uvarint(count + 1) + partitions + b"\0"
    return make_frame(api_key, 0, group + b"\x02" + topic + b"\0")


def make_request_with_topics(api_key: int, count: int) -> bytes:
    """Return a request for `count` topics without partitions, in version 0."""
    return make_frame(api_key, 0, _GROUP + write_uvarint(count + 1) + count * (_TOPIC_ID + b"\x01\0") + b"\0")


def make_write_with_batches(count: int, *, tags: bytes = b"\0") -> bytes:
    """Return a write of `count` overlapping state batches to one share-partition."""
    batch = Struct(">qqbh")
    batches = b"".join(batch.pack(count - n, count - n + 10, 2, 1 + n % 5) + tags for n in range(count))
    fields = bytes(12) + bytes(8) + write_uvarint(count + 1)
    return make_frame(WRITE, 0, _GROUP + b"\x02" + _TOPIC_ID + b"\x02" + fields + batches + b"\0\0\0")


def make_batches(count: int, first: int = 0, step: int = 2) -> bytes:
    """Return `count` state batches of one offset each; with a step of 2, they cannot be merged."""
    return b"".join(Struct(">qqbhx").pack(first + step * n, first + step * n, 2, 1) for n in range(count))


def make_write(partition: int, batches: bytes, count: int, start_offset: int = 0) -> bytes:
    """Return a write of state batches to a partition that `make_request_with_partitions` initialized."""
    fields = Struct(">iiiq").pack(partition, 1, 0, start_offset) + write_uvarint(count + 1)
    return make_frame(
        WRITE,
        0,
        _GROUP + b"\x02" + _TOPIC_ID + b"\x02" + fields + batches + b"\0\0\0",
    )


def make_write_with_one_batch_each(count: int) -> bytes:
    """Return a write of one state batch to each partition that `make_request_with_partitions` initialized."""
    batch = write_uvarint(2) + make_batches(1) + b"\0"
    fields = (1).to_bytes(4, "big") + bytes(12)
    partitions = b"".join(number.to_bytes(4, "big") + fields + batch for number in range(count))
    topic = _TOPIC_ID + write_uvarint(count + 1) + partitions + b"\0"
    return make_frame(WRITE, 0, _GROUP + b"\x02" + topic + b"\0")


def make_writes_of_one_share_partition(count: int) -> bytes:
    """Return a request with `count` writes to one share-partition, each with lower offsets than before."""
    fields = bytes(4) + (1).to_bytes(4, "big") + bytes(12)
    batches = make_batches(count)
    each = [fields + b"\x02" + batches[20 * n : 20 * n + 20] + b"\0" for n in reversed(range(count))]
    topic = _TOPIC_ID + write_uvarint(count + 1) + b"".join(each) + b"\0"
    return make_frame(WRITE, 0, _GROUP + b"\x02" + topic + b"\0")


def make_reads_of_one_share_partition(leader_epochs: list[int]) -> bytes:
    """Return a request that reads a share-partition once with each leader epoch."""
    entries = b"".join(bytes(4) + epoch.to_bytes(4, "big") + b"\0" for epoch in leader_epochs)
    topic = _TOPIC_ID + write_uvarint(len(leader_epochs) + 1) + entries + b"\0"
    return make_frame(READ, 0, _GROUP + b"\x02" + topic + b"\0")


def make_find_with_keys(keys: list[bytes], client_id: bytes = b"load") -> bytes:
    """Return a FindCoordinator request with these keys."""
    encoded = b"".join(write_uvarint(len(key) + 1) + key for key in keys)
    body = b"\x02" + write_uvarint(len(keys) + 1) + encoded + b"\0"
    return make_frame(FIND_COORDINATOR, 6, body, client_id=client_id)


def make_request_with_tags(api_key: int, version: int, fields: bytes, count: int) -> bytes:
    """Return a request with `count` empty tagged fields at its end."""
    return make_frame(api_key, version, fields + write_uvarint(count) + count * b"\0\0")


def make_request_with_header_tags(count: int) -> bytes:
    """Return an ApiVersions request with `count` tagged fields in its header."""
    header = _HEADER.pack(API_VERSIONS, 3, 7, 4) + b"load" + write_uvarint(count) + count * b"\0\0"
    return _SIZE.pack(len(header)) + header


def largest_frames(frame_bytes: int) -> Iterator[tuple[str, Callable[[], bytes]]]:
    """Yield the name and the builder of each expensive frame of at most `frame_bytes`."""
    names = {INITIALIZE: "Initialize", READ: "Read", WRITE: "Write", DELETE: "Delete", SUMMARY: "Summary"}
    body_bytes = frame_bytes - 100
    for api_key, name in names.items():
        count = body_bytes // len(partition_fields(api_key, 0))
        yield f"{name} partitions", partial(make_request_with_partitions, api_key, count)
        yield f"{name} topics", partial(make_request_with_topics, api_key, body_bytes // 18)
    yield "Write batches", lambda: make_write_with_batches(body_bytes // 20)
    yield "Write tagged batches", lambda: make_write_with_batches(body_bytes // 22, tags=b"\x01\0\0")
    yield "FindCoordinator empty keys", lambda: make_find_with_keys([b""] * body_bytes)
    yield (
        "FindCoordinator long keys",
        lambda: make_find_with_keys(["\U0001f600".encode() + b"a" * 32_000] * (body_bytes // 32_010)),
    )
    yield (
        "FindCoordinator tags",
        lambda: make_request_with_tags(FIND_COORDINATOR, 6, b"\x02\x01", body_bytes // 2),
    )
    yield "ApiVersions tags", lambda: make_request_with_tags(API_VERSIONS, 3, b"\x02a\x02b", body_bytes // 2)
    yield "header tags", lambda: make_request_with_header_tags(body_bytes // 2)
    yield (
        "SaslAuthenticate tags",
        lambda: make_request_with_tags(SASL_AUTHENTICATE, 2, b"\x02a", body_bytes // 2),
    )
    yield (
        "SaslHandshake",
        lambda: make_frame(SASL_HANDSHAKE, 1, (0x7FFF).to_bytes(2, "big") + b"a" * 0x7FFF, flexible=False),
    )


def large_valid_requests() -> Iterator[tuple[str, Callable[[], bytes]]]:
    """Yield requests that a broker with 10 000 share-partitions may send, and some larger ones."""
    for api_key, name in ((INITIALIZE, "Initialize"), (WRITE, "Write"), (READ, "Read"), (SUMMARY, "Summary")):
        yield f"{name} 29 000", partial(make_request_with_partitions, api_key, 29_000)
    yield "Write 20 000 batches", lambda: make_write_with_batches(20_000)
    key = "group:AAECAwQFBgcICQoLDA0ODw:"
    yield "FindCoordinator 29 000", lambda: make_find_with_keys([f"{key}{n}".encode() for n in range(29_000)])
    yield "Delete 29 000", lambda: make_request_with_partitions(DELETE, 29_000)
    yield "Initialize long group", lambda: make_request_with_partitions(INITIALIZE, 20_000, b"g" * 32_000)
