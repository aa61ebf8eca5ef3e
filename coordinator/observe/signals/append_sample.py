"""Count acknowledged, released and rejected user records from the appends to a coordinator's log.

A coordinator does not follow its own log. The coordinator's log passes each durable append to an
`AppendSampler`, which keeps references to the bytes. If more bytes are appended between two calls of
`take_counts` than the sampler may keep, the sampler keeps only every second append, then every fourth append,
and so on. `take_counts` decodes a part of the kept appends and extrapolates the counts. Therefore, memory and
CPU time are limited, and at usual loads the counts are complete.

The previous state of a share-partition is not considered. Therefore, a repeated write is counted twice. A
write that is stored as a snapshot (`snapshot.update.records.per.snapshot`) is not counted.
"""

import asyncio
from collections import defaultdict
from collections.abc import Iterator, Sequence

from coordinator.observe.signals.changes import RecordCounts
from protocol.errors import DecodeError
from protocol.messages.share_update import ShareUpdateValue
from protocol.record_batch import decode_batches
from protocol.state_batches import unpack
from protocol.state_records import StateRecord, decode_record

# About 30,000 writes.
KEPT_BYTES_MAX = 4 << 20
# Maximum number of decoded bytes of a sample: about 1,500 writes, whose decoding takes about 25 ms.
DECODED_BYTES_MAX = 192 << 10
# Number of batches that are decoded before yielding to the event loop.
_SLICE = 16


class AppendSampler:
    """Keeps at most `bytes_max` bytes of appends until the next `take_counts`."""

    def __init__(self, bytes_max: int = KEPT_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._clear_sample()

    def _clear_sample(self) -> None:
        self._kept: list[tuple[Sequence[bytes], int]] = []
        self._kept_bytes = self._appended_bytes = self._appends = 0
        self._stride = 1

    def add(self, batches: Sequence[bytes], prefix_bytes: int) -> None:
        """Add a durable append: encoded record batches, each preceded by `prefix_bytes` other bytes."""
        size_bytes = sum(map(len, batches)) - prefix_bytes * len(batches)
        self._appended_bytes += size_bytes
        self._appends += 1
        if self._appends % self._stride:
            return
        self._kept.append((batches, prefix_bytes))
        self._kept_bytes += size_bytes
        while self._kept_bytes > self._bytes_max:
            del self._kept[::2]
            self._kept_bytes = sum(len(batch) - prefix for batches, prefix in self._kept for batch in batches)
            self._stride *= 2

    async def take_counts(self) -> dict[str, RecordCounts]:
        """Return the counts since the last call by group, extrapolated from a part of the appends."""
        kept, kept_bytes, appended_bytes = self._kept, self._kept_bytes, self._appended_bytes
        self._clear_sample()
        batches = [batch[prefix:] for batches, prefix in kept for batch in batches]
        stride = kept_bytes // DECODED_BYTES_MAX + 1
        decoded = batches[stride - 1 :: stride]
        decoded_bytes = sum(map(len, decoded))
        scale = appended_bytes / decoded_bytes if decoded_bytes else 1.0
        groups: defaultdict[str, RecordCounts] = defaultdict(RecordCounts)
        for number, batch in enumerate(decoded, 1):
            for record in _decode_records(batch):
                if isinstance(record.value, ShareUpdateValue):
                    for first, last, state, _ in unpack(record.value.state_batches):
                        groups[record.key.group_id][state] += (last - first + 1) * scale
            if number % _SLICE == 0:
                await asyncio.sleep(0)
        return groups


def _decode_records(data: bytes) -> Iterator[StateRecord]:
    for batch in decode_batches(data):
        for logged in batch.records:
            try:
                record = decode_record(logged.key, logged.value)
            except DecodeError:
                continue
            if record is not None:
                yield record
