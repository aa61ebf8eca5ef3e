"""Record batches: hand-written bytes, bytes of another implementation, and malformed bytes."""

import gzip
from collections.abc import Callable
from random import Random
from struct import pack

import cramjam
import pytest
from aiokafka.record.default_records import DefaultRecordBatchBuilder
from aiokafka.record.memory_records import MemoryRecords
from crc32c import crc32c

from protocol.errors import DecodeError
from protocol.record_batch import (
    HEADER_BYTES,
    LogRecord,
    RecordBatch,
    batch_size_at,
    decode_batches,
    encode_batch,
    next_offset_at,
)

# Two records at log offset 7, written field by field after the description of the format (KIP-98).
RECORDS_BY_HAND = bytes.fromhex(
    "12"  # length 9
    "00 00 00"  # attributes, timestamp delta, offset delta
    "02 6b"  # key "k"
    "04 7631"  # value "v1"
    "00"  # headers
    "0c"  # length 6
    "00 00 02"  # offset delta 1
    "00"  # empty key
    "01"  # null value
    "00"
)
COVERED_BY_HAND = (
    bytes.fromhex(
        "0000"  # attributes
        "00000001"  # last offset delta
        "0000018bcfe56800 0000018bcfe56800"  # base and max timestamp: 1700000000000
        "ffffffffffffffff ffff 00000000"  # producer id, producer epoch, base sequence
        "00000002"  # records
    )
    + RECORDS_BY_HAND
)
BY_HAND = pack(">qiibI", 7, 4 + 1 + 4 + len(COVERED_BY_HAND), 3, 2, crc32c(COVERED_BY_HAND)) + COVERED_BY_HAND


def decode_single_batch(buf: bytes) -> RecordBatch:
    (batch,) = decode_batches(buf)
    return batch


def make_batch(
    records: bytes, count: int, attributes: int = 0, last_offset_delta: int | None = None
) -> bytes:
    """Return a batch with a correct CRC around the given records section."""
    delta = count - 1 if last_offset_delta is None else last_offset_delta
    covered = pack(">hiqqqhii", attributes, delta, 1000, 2000, -1, -1, 0, count) + records
    return pack(">qiibI", 0, len(covered) + 9, 0, 2, crc32c(covered)) + covered


def test_encoded_batch_equals_hand_written_bytes() -> None:
    records = [(b"k", b"v1"), (b"", None)]
    assert encode_batch(7, 1_700_000_000_000, records, leader_epoch=3) == BY_HAND


def test_hand_written_batch_is_decoded() -> None:
    batch = decode_single_batch(BY_HAND)
    assert batch.records == [
        LogRecord(7, 1_700_000_000_000, b"k", b"v1", ()),
        LogRecord(8, 1_700_000_000_000, b"", None, ()),
    ]
    assert all(isinstance(record, LogRecord) for record in batch.records)
    assert (batch.base_offset, batch.last_offset, batch.leader_epoch) == (7, 8, 3)
    assert (batch.producer_id, batch.producer_epoch, batch.base_sequence) == (-1, -1, 0)
    assert not batch.is_control


@pytest.mark.parametrize("count", [1, 2, 63, 64, 65, 200])
@pytest.mark.parametrize("size", [0, 1, 60, 64, 8191, 8192, 16384, 70_000])
def test_encoded_batch_is_read_by_aiokafka(count: int, size: int) -> None:
    records: list[tuple[bytes, bytes | None]] = [
        (
            b"k%d" % index * (1 + size % 100) if index else b"k" * size,
            None if index % 3 == 2 else bytes([index % 256]) * (size // count),
        )
        for index in range(count)
    ]
    headers = (("owner", b"\0\0\0\7"), ("", b""))
    buf = encode_batch(2**40, 1_700_000_000_123, records, headers)
    theirs = MemoryRecords(buf).next_batch()
    assert theirs.validate_crc()
    assert (theirs.base_offset, theirs.next_offset) == (2**40, 2**40 + count)
    assert [(record.offset, record.timestamp, record.key, record.value) for record in theirs] == [
        (2**40 + index, 1_700_000_000_123, key, value) for index, (key, value) in enumerate(records)
    ]
    ours = decode_single_batch(buf)
    assert [(record.key, record.value) for record in ours.records] == records
    assert {record.headers for record in ours.records} == {headers}


@pytest.mark.parametrize("codec", [0, 1, 2, 3, 4])
@pytest.mark.parametrize("count", [1, 3, 500])
def test_batch_written_by_aiokafka_is_decoded(codec: int, count: int) -> None:
    rng = Random(count)
    builder = DefaultRecordBatchBuilder(
        magic=2,
        compression_type=codec,
        is_transactional=False,
        producer_id=12,
        producer_epoch=3,
        base_sequence=77,
        batch_size=1 << 24,
    )
    expected = []
    for index in range(count):
        key = rng.choice([None, b"", rng.randbytes(rng.randrange(1, 200))])
        value = rng.choice([None, b"", rng.randbytes(rng.randrange(1, 2000)), bytes(20_000)])
        headers = [("name", b"value"), ("none", None)][: rng.randrange(3)]
        timestamp_ms = 1_700_000_000_000 + rng.randrange(-1000, 100_000)
        builder.append(index, timestamp_ms, key, value, headers)
        expected.append(LogRecord(index, timestamp_ms, key, value, tuple(headers)))
    batch = decode_single_batch(bytes(builder.build()))
    assert batch.records == expected
    assert (batch.producer_id, batch.producer_epoch, batch.base_sequence) == (12, 3, 77)


def compress_xerial(data: bytes, block_bytes: int) -> bytes:
    """Return the data in the snappy framing of the Java library."""
    framed = [b"\x82SNAPPY\x00", pack(">ii", 1, 1)]
    for begin in range(0, len(data), block_bytes):
        block = bytes(cramjam.snappy.compress_raw(data[begin : begin + block_bytes]))
        framed += [pack(">i", len(block)), block]
    return b"".join(framed)


@pytest.mark.parametrize(
    ("attributes", "compress"),
    [
        (1, gzip.compress),
        (2, lambda data: compress_xerial(data, 32 << 10)),
        (2, lambda data: compress_xerial(data, 7)),
        (2, lambda data: bytes(cramjam.snappy.compress_raw(data))),
        (3, lambda data: bytes(cramjam.lz4.compress(data))),
        (4, lambda data: bytes(cramjam.zstd.compress(data))),
    ],
    ids=["gzip", "xerial", "xerial, small blocks", "bare snappy", "lz4", "zstd"],
)
def test_every_compression_is_decoded(attributes: int, compress: Callable[[bytes], bytes]) -> None:
    batch = decode_single_batch(make_batch(compress(RECORDS_BY_HAND), 2, attributes))
    assert [(record.key, record.value) for record in batch.records] == [(b"k", b"v1"), (b"", None)]


@pytest.mark.parametrize("attributes", [1, 2, 3, 4, 5, 6, 7])
def test_data_that_cannot_be_decompressed_is_refused(attributes: int) -> None:
    with pytest.raises(DecodeError):
        decode_single_batch(make_batch(b"no compressed data at all", 1, attributes))


XERIAL_HEADER = b"\x82SNAPPY\x00" + bytes(8)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (XERIAL_HEADER[:8], "no records|does not decompress|record"),
        (XERIAL_HEADER + b"\0\0\0\x04abc", "a snappy block of 4 bytes extends beyond its batch"),
        (XERIAL_HEADER + b"\xff\xff\xff\xfeabc", "a snappy block of -2 bytes extends beyond its batch"),
        (XERIAL_HEADER + b"\0\0\0\0", "does not decompress"),
        (XERIAL_HEADER + b"\0\0", "does not decompress"),
    ],
)
def test_malformed_snappy_framing_is_refused(data: bytes, reason: str) -> None:
    with pytest.raises(DecodeError, match=reason):
        decode_single_batch(make_batch(data, 1, 2))


def test_log_append_time_applies_to_all_records() -> None:
    batch = decode_single_batch(make_batch(RECORDS_BY_HAND, 2, 0x08))
    assert [record.timestamp_ms for record in batch.records] == [2000, 2000]


def test_control_batch_is_detected() -> None:
    assert decode_single_batch(make_batch(RECORDS_BY_HAND, 2, 0x20)).is_control
    assert not decode_single_batch(make_batch(RECORDS_BY_HAND, 2, 0x50)).is_control


def test_compacted_batch_ends_at_the_offset_in_its_header() -> None:
    batch = decode_single_batch(make_batch(RECORDS_BY_HAND, 2, last_offset_delta=9))
    assert batch.last_offset == 9
    assert next_offset_at(make_batch(RECORDS_BY_HAND, 2, last_offset_delta=9), 0) == 10
    assert decode_single_batch(make_batch(b"", 0, last_offset_delta=4)).records == []


def test_consecutive_batches_are_decoded() -> None:
    buf = b"junk" + encode_batch(0, 1, [(b"a", b"1")]) + encode_batch(1, 2, [(b"b", b"2"), (b"c", None)])
    assert [batch.last_offset for batch in decode_batches(buf, 4)] == [0, 2]
    size_bytes = batch_size_at(buf, 4)
    assert size_bytes is not None
    assert next_offset_at(buf, 4) == 1
    assert next_offset_at(buf, 4 + size_bytes) == 3
    assert 4 + size_bytes + (batch_size_at(buf, 4 + size_bytes) or 0) == len(buf)


def test_batch_size_is_known_before_the_batch_is_complete() -> None:
    assert batch_size_at(BY_HAND[:12], 0) == len(BY_HAND)
    assert batch_size_at(BY_HAND[:11], 0) is None
    assert batch_size_at(b"", 0) is None
    with pytest.raises(DecodeError):
        batch_size_at(bytes(12), 0)


def test_empty_batch_is_not_encoded() -> None:
    with pytest.raises(ValueError, match="at least one record"):
        encode_batch(0, 0, [])


def test_truncated_batch_is_refused() -> None:
    for size in range(1, len(BY_HAND)):
        with pytest.raises(DecodeError):
            list(decode_batches(BY_HAND[:size]))


def test_every_flipped_bit_covered_by_the_crc_is_detected() -> None:
    for position in range(HEADER_BYTES - 44, len(BY_HAND)):
        damaged = bytearray(BY_HAND)
        damaged[position] ^= 0x10
        with pytest.raises(DecodeError):
            decode_single_batch(bytes(damaged))


@pytest.mark.parametrize("magic", [0, 1, 3])
def test_other_magic_is_refused(magic: int) -> None:
    damaged = bytearray(BY_HAND)
    damaged[16] = magic
    with pytest.raises(DecodeError, match="magic"):
        decode_single_batch(bytes(damaged))


@pytest.mark.parametrize(
    ("records", "count"),
    [
        ("", 1),  # no record
        ("12 00 00 00 02 6b 04 7631 00", 2),  # fewer records than the count
        ("12 00 00 00 02 6b 04 7631 00", 0),  # more records than the count
        ("12 00 00 00 02 6b 04 7631 00", -1),
        ("12 00 00 00 02 6b 04 7631 00", 2**31 - 1),
        ("10 00 00 00 02 6b 04 7631 00", 1),  # a record beyond its length
        ("14 00 00 00 02 6b 04 7631 00 00", 1),  # a record shorter than its length
        ("01", 1),  # negative length
        ("00", 1),  # length 0, without any field
        ("12 00 00 00 03 6b 04 7631 00", 1),  # key length -2
        ("12 00 00 00 7e 6b 04 7631 00", 1),  # a key that ends after the batch
        ("12 00 00 00 02 6b 7e 7631 00", 1),  # a value that ends after the batch
        ("12 00 00 00 02 6b 04 7631 01", 1),  # -1 headers
        ("12 00 00 00 02 6b 04 7631 7e", 1),  # 63 headers
        ("16 00 00 00 02 6b 04 7631 02 01 00", 1),  # a header without a name
        ("18 00 00 00 02 6b 04 7631 02 02 ff 00", 1),  # a header whose name is not text
        ("ff ff ff ff ff ff ff ff ff ff ff", 1),  # an endless varint
        ("12 00 00 80", 1),  # a truncated varint
    ],
)
def test_malformed_records_are_refused(records: str, count: int) -> None:
    with pytest.raises(DecodeError):
        decode_single_batch(make_batch(bytes.fromhex(records), count, last_offset_delta=0))


def test_negative_last_offset_delta_is_refused() -> None:
    with pytest.raises(DecodeError):
        decode_single_batch(make_batch(RECORDS_BY_HAND, 2, last_offset_delta=-1))
