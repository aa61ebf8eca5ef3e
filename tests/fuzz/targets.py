"""Fuzz targets: functions that decode arbitrary bytes, and raise if a decoder violates its contract.

A decoder returns a value or raises its documented error. Encoding a decoded request and decoding it again
returns the same request. The compiled module behaves like the Python implementation.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from crc32c import crc32c

from coordinator import fastpath
from coordinator.cluster.topics import EveryTopicExists
from coordinator.log.journal import layout
from coordinator.security.passwords import PlainExchange, ScramExchange
from coordinator.security.sasl import AuthenticationFailed, SaslExchange
from coordinator.security.users import Users
from coordinator.serve.runtime.replay import ReferenceReplay, replay_record
from coordinator.serve.server.error_responses import CloseConnection, decode_frame, error_response
from coordinator.shard import Shard, SnapshotPolicy
from protocol.errors import DecodeError, ErrorCode, FrameError
from protocol.frames import FrameReader
from protocol.messages import APIS
from protocol.messages import write_share_group_state as write_api
from protocol.record_batch import HEADER_BYTES, decode_batches
from protocol.state_records import decode_record

_FRAME_BYTES_MAX = 1 << 16
_CRC_AT, _COVERED_AT = 17, 21


def fuzz_request(data: bytes) -> None:
    """Decode a request of an unauthenticated client, and encode the error response."""
    try:
        decoded = decode_frame(data)
    except CloseConnection:
        return
    error_response(decoded, ErrorCode.CLUSTER_AUTHORIZATION_FAILED, "refused")
    module: Any = APIS[decoded.api_key].module
    encoded = module.encode_request(decoded.message, decoded.version)
    assert module.decode_request(encoded, 0, decoded.version) == decoded.message


def fuzz_frames(data: bytes) -> None:
    """Decode the bytes of a connection at once and in chunks, whose size is the first byte."""
    if not data:
        return
    size, data = data[0] + 1, data[1:]
    whole, pieces = FrameReader(_FRAME_BYTES_MAX), FrameReader(_FRAME_BYTES_MAX)
    found = []
    with suppress(FrameError):
        for at in range(0, len(data), size):
            found += pieces.receive_data(data[at : at + size])
    with suppress(FrameError):
        assert whole.receive_data(data) == found


def correct_checksums(data: bytes) -> bytes:
    """Correct the checksums of record batches, as far as their lengths permit."""
    fixed = bytearray(data)
    at = 0
    while at + HEADER_BYTES <= len(fixed):
        end = at + 12 + int.from_bytes(fixed[at + 8 : at + 12], "big", signed=True)
        if not at + HEADER_BYTES <= end <= len(fixed):
            break
        fixed[at + _CRC_AT : at + _COVERED_AT] = crc32c(bytes(fixed[at + _COVERED_AT : end])).to_bytes(
            4, "big"
        )
        at = end
    return bytes(fixed)


def fuzz_record_batch(data: bytes) -> None:
    """Decode record batches of a log, and their state records."""
    with suppress(DecodeError):
        for batch in decode_batches(correct_checksums(data)):
            for record in batch.records:
                with suppress(DecodeError):
                    decode_record(record.key, record.value)


def _replay_data(data: bytes, make: Callable[[Shard], Any]) -> object:
    shard = Shard(0, SnapshotPolicy(updates_max=500))
    replay = make(shard)
    try:
        count = replay.replay_batches(data)
    except (DecodeError, AssertionError) as error:
        return type(error)
    return count, sorted(shard.items()), shard.redundant_offset, shard.live_bytes


def fuzz_loading(data: bytes) -> None:
    """Load the log of a shard with the compiled module and with the Python implementation."""
    data = correct_checksums(data)
    module: Any = fastpath.compiled
    expected = _replay_data(data, ReferenceReplay)
    assert _replay_data(data, lambda shard: module.Replay(shard, {}, replay_record)) == expected


def fuzz_journal(data: bytes) -> None:
    """Decode the parts of a journal segment with valid checksums: header, recovery point, frame and
    entries.
    """
    head_bytes = layout.HEAD_BYTES
    for size in {len(data) - 4, 512} & set(range(4, len(data) + 1)):
        with suppress(ValueError):
            layout.decode_header(data[:size] + crc32c(data[:size]).to_bytes(4, "big"))
    point = data[:24].ljust(24, b"\0")
    layout.decode_recovery_point((point + crc32c(point).to_bytes(4, "big")).ljust(512, b"\0"))
    if len(data) < 24:
        return
    numbers = [int.from_bytes(data[at : at + 8], "big") for at in (0, 8, 16)]
    framed = layout.encode_frame(1, 0, *numbers, [data[24:]])
    frame = layout.decode_frame_at(memoryview(framed), 0, 1, 0)
    assert frame is not None
    assert frame.entries == data[24:]
    with suppress(ValueError):
        assert sum(
            len(entry.batch) + layout.ENTRY_HEAD_BYTES for entry in layout.decode_entries(frame)
        ) == len(frame.entries)
    broken = framed[:head_bytes] + data
    layout.decode_frame_at(memoryview(broken), 0, 1, 0)
    layout.is_torn(memoryview(broken), 0, 1)
    layout.minimum_file_bytes(memoryview(broken), 0, 1)


@cache
def _make_users() -> Users:
    file = Path(mkdtemp(prefix="share-coordinator-fuzz-")) / "users.properties"
    file.write_text("user=secret\n", "utf-8")
    return Users(str(file), "listen.sasl.users.file", ("PLAIN", "SCRAM-SHA-256"))


@cache
def _event_loop() -> asyncio.AbstractEventLoop:
    return asyncio.new_event_loop()


def fuzz_sasl(data: bytes) -> None:
    """Process the tokens of a PLAIN and of a SCRAM login. Two zero bytes separate the tokens of SCRAM."""

    async def process_tokens(exchange: SaslExchange, tokens: list[bytes]) -> None:
        with suppress(AuthenticationFailed):
            for token in tokens:
                await exchange.process_token(token)

    users = _make_users()
    _event_loop().run_until_complete(process_tokens(PlainExchange(users), [data]))
    _event_loop().run_until_complete(
        process_tokens(ScramExchange("SCRAM-SHA-256", users), data.split(b"\0\0"))
    )


def fuzz_writes(data: bytes) -> None:
    """Compare responses and records of a write between the write kernel and the Python reference."""
    from tests.property.test_fastpath import CoordinatorUnderTest, make_initialize_request

    if not data:
        return
    request = (write_api.API_KEY, data[0] & 1, data[1:])

    async def execute_write(module: Any) -> object:
        present, fastpath.compiled = fastpath.compiled, module
        try:
            coordinator = CoordinatorUnderTest(SnapshotPolicy(), EveryTopicExists())
        finally:
            fastpath.compiled = present
        await coordinator.runtime.start()
        while not coordinator.runtime.initial_load_done:  # noqa: ASYNC110
            await asyncio.sleep(0)
        coordinator.send_frame(0, make_initialize_request("g", bytes(range(16)), 0, 1, 0), False)
        await coordinator.wait_for_appends()
        coordinator.send_frame(1, request, False)
        await coordinator.wait_for_appends()
        batches = [chunk async for chunk in coordinator.log.read(range(3))]
        await coordinator.runtime.stop()
        return coordinator.answers, batches

    async def compare_modules() -> None:
        assert await execute_write(fastpath.compiled) == await execute_write(None)

    _event_loop().run_until_complete(compare_modules())


TARGETS: dict[str, Callable[[bytes], None]] = {
    target.__name__.removeprefix("fuzz_"): target
    for target in (
        fuzz_request,
        fuzz_frames,
        fuzz_record_batch,
        fuzz_loading,
        fuzz_journal,
        fuzz_sasl,
        fuzz_writes,
    )
}
