"""Compare columnar parsing and decoding with the codecs of `protocol`."""

from dataclasses import astuple
from typing import Any

import pyarrow as pa
import pytest
from aiokafka.record.default_records import DefaultRecordBatchBuilder
from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator.log.claims import owner_epoch_headers, read_owner_epoch
from coordinator.recovery.decode import RecordKind, decode
from coordinator.recovery.parse import parse, parse_around_damage, parse_readable
from coordinator.recovery.records import Records, records_from_arrow
from coordinator.recovery.schema import RECORDS
from protocol.errors import DecodeError
from protocol.messages.share_snapshot import ShareSnapshotValue
from protocol.messages.share_update import ShareUpdateValue
from protocol.record_batch import decode_batches, encode_batch
from protocol.state_batches import StateBatch, unpack
from protocol.state_records import UnreadableValue, decode_record
from tests.recovery.log_strategies import LogEntry, encode_log, kafkas_logs, our_logs

Row = tuple[Any, ...]


def record_rows(records: Records) -> list[Row]:
    return [
        (
            int(records.log_offset[row]),
            int(records.timestamp_ms[row]),
            records.keys.get(row),
            records.values.get(row),
            int(records.owner_epoch[row]),
        )
        for row in range(len(records))
    ]


def rows_by_protocol(data: bytes) -> list[Row]:
    found = []
    for batch in decode_batches(data):
        for record in batch.records:
            epoch = read_owner_epoch(record)
            found.append(
                (record.offset, record.timestamp_ms, record.key, record.value, -1 if epoch is None else epoch)
            )
    return found


binaries = st.none() | st.binary(max_size=300)
headers = st.sampled_from(
    [
        (),
        owner_epoch_headers(7),
        (("owner-epoch", b"\0"),),
        (("owner-epoch", b"\0\0\0\2"), ("more", b"x")),
        (("a", b""), *owner_epoch_headers(2**31 - 1)),
        (("owner-epoxh", b"\0\0\0\2"),),
    ]
)


@given(
    st.lists(
        st.tuples(st.lists(st.tuples(st.binary(max_size=200), binaries), min_size=1, max_size=5), headers),
        max_size=6,
    ),
    st.integers(0, 2**40),
)
@settings(deadline=None)
def test_parsed_records_equal_those_of_protocol(
    batches: list[tuple[list[tuple[bytes, bytes | None]], Any]], base_offset: int
) -> None:
    data = b""
    for records, with_headers in batches:
        data += encode_batch(base_offset, 1_700_000_000_000, records, headers=with_headers, leader_epoch=3)
        base_offset += len(records)
    found = parse(1, data)
    assert (found.used_bytes, found.found) == (len(data), None)
    assert record_rows(found.records) == rows_by_protocol(data)


@pytest.mark.parametrize("codec", [0, 1, 2, 3, 4], ids=["none", "gzip", "snappy", "lz4", "zstd"])
def test_client_batches_are_read_with_any_compression(codec: int) -> None:
    builder = DefaultRecordBatchBuilder(
        magic=2,
        compression_type=codec,
        is_transactional=0,
        producer_id=9,
        producer_epoch=4,
        base_sequence=17,
        batch_size=1 << 20,
    )
    for number in range(300):
        key, value = b"key %d" % number, None if number % 7 == 0 else b"value" * number
        headers = [("owner-epoch", b"\0\0\0\x05")] if number % 3 else []
        builder.append(number, timestamp=1_000 + number, key=key, value=value, headers=headers)
    data = bytes(builder.build())
    plain = encode_batch(300, 5, [(b"k", b"v")])
    found = parse(1, plain + data + plain).records
    assert record_rows(found) == rows_by_protocol(plain + data + plain)
    assert found.batches.producer_id.tolist() == [-1, 9, -1]
    assert found.batches.base_sequence.tolist() == [0, 17, 0]


def test_parsing_stops_before_incomplete_or_damaged_batch() -> None:
    good = encode_batch(0, 5, [(b"k", b"v"), (b"k", None)])
    more = encode_batch(2, 5, [(b"k", b"w")])
    for end in range(len(more)):
        found = parse(1, good + more[:end])
        assert (len(found.records), found.used_bytes, found.found) == (2, len(good), None)
    for place in range(17, len(more)):
        damaged = bytearray(more)
        damaged[place] ^= 1
        found = parse(1, good + bytes(damaged), first_byte=1_000)
        assert (len(found.records), found.used_bytes) == (2, len(good))
        assert f"the batch at byte {1_000 + len(good)} fails its CRC" in str(found.found)
    assert "there is no batch" in str(parse(1, good + bytes(100)).found)
    assert parse(1, b"").used_bytes == 0


def test_batch_with_valid_crc_and_invalid_records_is_refused() -> None:
    from crc32c import crc32c

    batch = bytearray(encode_batch(0, 5, [(b"key", b"value")]))
    batch[61] += 2
    batch[17:21] = crc32c(bytes(batch[21:])).to_bytes(4)
    with pytest.raises(DecodeError):
        parse(1, bytes(batch))
    good = encode_batch(0, 5, [(b"key", b"value")])
    found = parse_readable(1, good + good + bytes(batch) + good)
    assert (len(found.records), found.used_bytes) == (2, 2 * len(good))
    assert found.found
    assert parse_readable(1, good + good).found is None


FIRST, SECOND = (encode_batch(log_offset, 5, [(b"key", b"value")]) for log_offset in (0, 1))


@pytest.mark.parametrize(
    ("data", "damaged", "records"),
    [
        pytest.param(FIRST[:-1] + b"?" + SECOND, (0, 0), 1, id="damaged batch"),
        pytest.param(FIRST + bytes(20), (0, 9), 1, id="less than a header"),
        pytest.param(FIRST[:8] + bytes(4) + FIRST[12:] + SECOND, (0, 0), 0, id="invalid size"),
    ],
)
def test_damage_is_reported_and_skipped(data: bytes, damaged: tuple[int, int], records: int) -> None:
    found = list(parse_around_damage(1, data, 0, 10, "a file"))
    assert [(each.first, each.last) for part in found for each in part.damages] == [damaged]
    assert sum(map(len, found)) == records


@given(kafkas_logs | our_logs)
@settings(deadline=None)
def test_records_survive_conversion_to_arrow(log: list[LogEntry]) -> None:
    batches = encode_log(log)
    if not batches:
        return
    records = parse(3, b"".join(batches)).records
    (again,) = records_from_arrow(records.to_arrow())
    assert record_rows(again) == record_rows(records)
    assert again.state_partition == 3
    assert again.to_arrow().equals(records.to_arrow())
    table = pa.Table.from_batches([records.to_arrow()], RECORDS)
    assert table.schema.equals(RECORDS)


@given(kafkas_logs)
@settings(deadline=None, max_examples=200)
def test_decoded_values_equal_those_of_protocol(log: list[LogEntry]) -> None:
    records = parse(3, b"".join(encode_log(log))).records
    decoded = decode(records)
    rows = {int(row): place for place, row in enumerate(decoded.record)}
    for row in range(len(records)):
        try:
            record = decode_record(records.keys.get(row), records.values.get(row))
        except DecodeError:
            assert row in decoded.undecodable
            continue
        if record is None:
            assert row in decoded.unknown or row in decoded.claims
            continue
        place = rows.pop(row)
        identity = decoded.share_partitions[int(decoded.key[place])]
        assert (records.keys.get(row) or b"")[2:] == identity
        kind, value = RecordKind(int(decoded.kind[place])), record.value
        if value is None:
            assert kind is RecordKind.TOMBSTONE
        elif isinstance(value, UnreadableValue):
            assert kind is RecordKind.UNREADABLE
            assert decoded.unreadable[place] == value.reason
        else:
            assert kind is (
                RecordKind.SNAPSHOT if isinstance(value, ShareSnapshotValue) else RecordKind.UPDATE
            )
            _assert_equal_value(decoded, place, value)
    assert not rows


def _assert_equal_value(decoded: Any, place: int, value: ShareSnapshotValue | ShareUpdateValue) -> None:
    names = ["snapshot_epoch", "leader_epoch", "start_offset", "delivery_complete_count"]
    if isinstance(value, ShareSnapshotValue):
        names += ["state_epoch", "leader_epoch_max", "create_timestamp", "write_timestamp"]
    for name in names:
        assert int(getattr(decoded, name)[place]) == getattr(value, name), name
    mine = decoded.batches.take(decoded.batches.row == place)
    batches = zip(*(column.tolist() for column in mine[1:]), strict=True)
    assert [StateBatch(*batch) for batch in batches] == unpack(value.state_batches)
    assert int(decoded.batch_count[place]) == len(mine.row)


def test_producer_fields_of_batch_are_kept() -> None:
    records = parse(1, encode_batch(4, 5, [(b"k", b"v")], producer_id=11, producer_epoch=2)).records
    assert [column[0] for column in astuple(records.batches)] == [4, 5, 70, 0, 0, 11, 2, 0]
