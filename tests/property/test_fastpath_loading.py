"""Test that the compiled replay of a log builds the same shard as the Python replay.

Random logs contain ordinary records, tombstones, updates without a snapshot and compressed batches. The logs
also contain unsupported value versions, unknown tags and record types, and unusual group ids.
"""

from collections.abc import Iterator
from random import Random
from typing import Any

import cramjam
import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from coordinator.serve.runtime.replay import ReferenceReplay, replay_record
from coordinator.shard import Shard, SnapshotPolicy
from coordinator.shard.packed_state import first_needed_offset
from protocol import record_batch
from protocol.errors import DecodeError
from protocol.messages.share_snapshot import ShareSnapshotValue
from protocol.messages.share_update import ShareUpdateValue
from protocol.record_batch import HEADER_BYTES, encode_batch
from protocol.state_batches import StateBatch, pack
from protocol.state_records import SharePartitionKey, StateRecord, encode_record
from tests.builders import OTHER_TOPIC_ID, TOPIC_ID
from tests.property.example_settings import example_settings

compiled = pytest.importorskip(
    "coordinator.fastpath._compiled", reason="it was not built: is there a C compiler?"
)

GROUPS = ("group", "grüße:😀", "")
SELDOM = 15
COVERED_AT = 21

Record = tuple[bytes, bytes | None]


def add_unknown_tag(record: Record) -> Record:
    """Add a tagged field of a later version to a value without tagged fields."""
    key, value = record
    assert value is not None
    assert value[-1] == 0
    return key, value[:-1] + b"\x01\x07\x03new"


class LogGenerator:
    """A generator of random logs: mostly ordinary records, sometimes unusual or invalid ones."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.window = 0

    def is_unusual(self) -> bool:
        return self.random.randrange(SELDOM) == 0

    def draw_batches(self) -> bytes:
        random = self.random
        first = self.window + random.randrange(-3, 6)
        drawn = []
        for _ in range(random.randrange(5)):
            length = random.randrange(3)
            drawn.append(StateBatch(first, first + length, random.choice((0, 2, 4)), random.randrange(1, 3)))
            first += length + random.randrange(1, 3)
        if self.is_unusual():
            end = random.choice((-(2**63), 2**63 - 1))
            drawn.insert(0 if end < 0 else len(drawn), StateBatch(end, end, 2, 1))
        if self.is_unusual():
            random.shuffle(drawn)
        return pack(drawn)

    def draw_record(self) -> Record:
        random = self.random
        self.window += random.randrange(2)
        key = SharePartitionKey(
            random.choice(GROUPS), random.choice((TOPIC_ID, OTHER_TOPIC_ID)), random.randrange(3)
        )
        start = random.choice((-1, self.window, self.window - random.randrange(4)))
        if self.is_unusual():
            return encode_record(StateRecord(key, None))
        if random.randrange(6) == 0:
            times = random.choice(((5, 5), (5, 6), (0, 2**40)))
            epochs = [random.randrange(4) for _ in range(3)]
            highest = random.randrange(9) if self.is_unusual() else -1
            made = ShareSnapshotValue(
                *epochs, start, *times, self.draw_batches(), self.draw_complete_count(), highest
            )
            return self.corrupt_record(encode_record(StateRecord(key, made)))
        epochs = random.randrange(4), random.randrange(-1, 4)
        if self.is_unusual():
            return add_unknown_tag(
                encode_record(StateRecord(key, ShareUpdateValue(*epochs, start, self.draw_batches())))
            )
        written = ShareUpdateValue(*epochs, start, self.draw_batches(), self.draw_complete_count())
        return self.corrupt_record(encode_record(StateRecord(key, written)))

    def draw_complete_count(self) -> int:
        return self.random.choice((-1, 0, 9))

    def corrupt_record(self, record: Record) -> Record:
        """Return the record, or sometimes a variant with another type or version, or with a malformed
        value."""
        key, value = record
        assert value is not None
        if not self.is_unusual():
            return record
        return self.random.choice(
            (
                (b"\0\x09" + key[2:], value),
                (key, b"\0\x01" + value[2:]),
                (key, value[:-1]),
                (key, value + b"\0"),
                (key, b""),
            )
        )

    def draw_batch(self, base_offset: int) -> tuple[bytes, int]:
        random = self.random
        records = [self.draw_record() for _ in range(random.randrange(1, 6))]
        headers = (("owner", b"1"), ("empty", b"")) if self.is_unusual() else ()
        data = encode_batch(base_offset, random.randrange(2**41), records, headers)
        return (compress_batch(data) if self.is_unusual() and self.is_unusual() else data), base_offset + len(
            records
        )


def compress_batch(data: bytes) -> bytes:
    """Return the same batch compressed with zstd, as the topic setting compression.type makes it."""
    covered = bytearray(data[COVERED_AT:HEADER_BYTES]) + bytes(cramjam.zstd.compress(data[HEADER_BYTES:]))
    covered[1] = 4
    size = (len(covered) + COVERED_AT - 12).to_bytes(4, "big")
    return data[:8] + size + data[12:17] + crc32c(bytes(covered)).to_bytes(4, "big") + bytes(covered)


def make_shard() -> Shard:
    return Shard(0, SnapshotPolicy(updates_max=500))


def shard_contents(shard: Shard) -> tuple[object, ...]:
    return (
        list(shard.items()) and sorted(shard.items()),
        [(key, first_needed_offset(packed)) for key, packed in shard._states.items()],
        shard.redundant_offset,
        shard.live_bytes,
        shard._pruning_offsets.end_log_offset,
    )


@example_settings(300)
@given(st.integers(0, 2**32), st.integers(1, 30))
def test_compiled_replay_gives_the_same_shard(seed: int, batches: int) -> None:
    generator = LogGenerator(seed)
    general, own = make_shard(), make_shard()
    one, other = ReferenceReplay(general), compiled.Replay(own, {}, replay_record)
    end = 0
    for _ in range(batches):
        data, end = generator.draw_batch(end)
        if generator.is_unusual():
            more, end = generator.draw_batch(end)
            data += more
        assert other.replay_batches(data) == one.replay_batches(data)
    assert shard_contents(own) == shard_contents(general)


@example_settings(300)
@given(st.integers(0, 2**32), st.data())
def test_damaged_batch_is_refused_by_both_replays(seed: int, data: st.DataObject) -> None:
    batch, _ = LogGenerator(seed).draw_batch(0)
    at = data.draw(st.integers(0, len(batch) - 1))
    damaged = batch[:at] + bytes([batch[at] ^ data.draw(st.integers(1, 255))]) + batch[at + 1 :]
    if data.draw(st.booleans()) and len(damaged) > HEADER_BYTES:
        crc = crc32c(damaged[COVERED_AT:])
        damaged = damaged[:17] + crc.to_bytes(4, "big") + damaged[COVERED_AT:]
    general, own = make_shard(), make_shard()
    one, other = ReferenceReplay(general), compiled.Replay(own, {}, replay_record)
    try:
        expected: object = one.replay_batches(damaged)
    except (DecodeError, AssertionError) as error:
        expected = type(error)
    try:
        found: object = other.replay_batches(damaged)
    except (DecodeError, AssertionError) as error:
        found = type(error)
    assert found == expected
    if isinstance(expected, int):
        assert shard_contents(own) == shard_contents(general)


def test_group_ids_and_topic_ids_are_shared_by_all_shards() -> None:
    shared_ids: dict[Any, Any] = {}
    keys = []
    for partition in range(2):
        key = SharePartitionKey("group", bytes(bytearray(TOPIC_ID)), partition)
        made = ShareSnapshotValue(0, 0, 0, 1, 2, 2, b"")
        own = make_shard()
        replay = compiled.Replay(own, shared_ids, replay_record)
        replay.replay_batches(encode_batch(0, 1, [encode_record(StateRecord(key, made))]))
        keys += own.share_partitions()
    assert keys[0].group_id is keys[1].group_id
    assert keys[0].topic_id is keys[1].topic_id


def test_empty_log_gives_an_empty_shard() -> None:
    own = make_shard()
    replay = compiled.Replay(own, {}, replay_record)
    assert replay.replay_batches(b"") == 0
    assert shard_contents(own) == shard_contents(make_shard())


def test_batch_is_decoded_once_for_all_records_replayed_in_python(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    decoded = []

    def record_and_decode(data: bytes) -> Iterator[record_batch.RecordBatch]:
        decoded.append(data)
        return record_batch.decode_batches(data)

    monkeypatch.setattr(compiled, "decode_batches", record_and_decode)
    keys = [SharePartitionKey("group", TOPIC_ID, number) for number in range(100)]
    # Reinitialized states, which the compiled replay leaves to Python.
    made = [StateRecord(key, ShareSnapshotValue(1, 1, 0, 0, 2, 2, b"", 0, 5)) for key in keys]
    data = encode_batch(0, 1, list(map(encode_record, made)))
    own = make_shard()
    replay = compiled.Replay(own, {}, replay_record)
    assert replay.replay_batches(data) == len(keys)
    assert decoded == [data]
    assert [state.leader_epoch_max for _, state in own.items()] == [5] * len(keys)


def test_compressed_batch_and_unusual_record_do_not_slow_down_other_batches(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Python replays only the record with an unknown tag; the compiled code replays the compressed batch."""
    keys = [SharePartitionKey("group", TOPIC_ID, number) for number in range(100)]
    made = [encode_record(StateRecord(key, ShareSnapshotValue(1, 1, 0, 0, 2, 2, b"", 0))) for key in keys]
    update_key, update = encode_record(StateRecord(keys[0], ShareUpdateValue(1, 0, 7, b"")))
    odd = add_unknown_tag(encode_record(StateRecord(keys[0], ShareUpdateValue(1, 0, 7, b""))))
    data = encode_batch(0, 1, made) + compress_batch(encode_batch(100, 1, made)) + encode_batch(200, 1, [odd])
    replayed = []

    def record_and_replay(own: Shard, record: record_batch.LogRecord) -> bool:
        replayed.append(record.offset)
        return replay_record(own, record)

    general, own = make_shard(), make_shard()
    replay = compiled.Replay(own, {}, record_and_replay)
    for offset in range(201, 301):
        data += encode_batch(offset, 1, [(update_key, update)])
    assert replay.replay_batches(data) == ReferenceReplay(general).replay_batches(data) == 301
    assert replayed == [200]
    assert shard_contents(own) == shard_contents(general)
