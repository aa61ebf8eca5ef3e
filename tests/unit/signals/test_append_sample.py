"""Counts of user records from the appends to a log, complete and extrapolated."""

import asyncio

import pytest

from coordinator.observe.signals import append_sample
from coordinator.observe.signals.append_sample import AppendSampler
from protocol.messages.share_update import ShareUpdateValue
from protocol.record_batch import encode_batch
from protocol.state_records import SharePartitionKey, StateRecord, encode_record
from tests.builders import ACKNOWLEDGED, ARCHIVED, AVAILABLE, KEY, BatchTuple, pack_batches


def encode_update(*batches: BatchTuple, key: SharePartitionKey = KEY) -> tuple[bytes, bytes | None]:
    return encode_record(StateRecord(key, ShareUpdateValue(0, 0, 0, pack_batches(*batches), 0)))


def make_mixed_records() -> list[tuple[bytes, bytes | None]]:
    return [
        encode_update((0, 3, ACKNOWLEDGED, 1), (4, 5, AVAILABLE, 1)),
        encode_update((6, 6, ARCHIVED, 5), key=KEY._replace(group_id="other")),
        (b"\x00\x07", None),
    ]


def test_records_are_counted_by_group() -> None:
    sample = AppendSampler()
    sample.add([b"prefix" + encode_batch(0, 1, make_mixed_records())], len(b"prefix"))
    groups = asyncio.run(sample.take_counts())
    assert groups == {KEY.group_id: {ACKNOWLEDGED: 4, AVAILABLE: 2}, "other": {ARCHIVED: 1}}
    assert asyncio.run(sample.take_counts()) == {}


def test_counts_are_extrapolated_above_the_limit() -> None:
    sample = AppendSampler(bytes_max=20_000)
    for number in range(5_000):
        state = ACKNOWLEDGED if number % 5 else ARCHIVED
        sample.add([encode_batch(number, 1, [encode_update((number, number, state, 1))])], 0)
        assert sample._kept_bytes <= 20_000
    counts = asyncio.run(sample.take_counts())[KEY.group_id]
    assert sum(counts.values()) == pytest.approx(5_000, rel=0.01)
    assert counts[ARCHIVED] == pytest.approx(1_000, rel=0.3)


def test_only_a_part_of_many_appends_is_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(append_sample, "DECODED_BYTES_MAX", 20_000)
    sample = AppendSampler()
    for number in range(1_000):
        sample.add([encode_batch(number, 1, [encode_update((number, number, ACKNOWLEDGED, 1))])], 0)
    counts = asyncio.run(sample.take_counts())[KEY.group_id]
    assert counts == {ACKNOWLEDGED: pytest.approx(1_000, rel=0.01)}
