"""Read batches of many partitions up to given end offsets, from all leaders concurrently.

A read ends when each position has reached its end offset. No record is required just below the end offset: it
may have been pruned or be a transaction marker. The next fetch is in flight while batches are processed.
"""

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Mapping
from typing import TYPE_CHECKING

from coordinator.cluster.kafka.broker_results import NO_NODE, FetchResult, NoResponse
from coordinator.errors import LogRefused, LogUnavailable
from coordinator.log.base import LoggedBatch
from coordinator.log.claims import FencingFilter, is_ownership_record
from protocol.errors import ErrorCode
from protocol.record_batch import LogRecord, batch_size_at, decode_batches, encode_batch, next_offset_at

if TYPE_CHECKING:
    from coordinator.cluster.kafka.brokers import Brokers

CHANNEL = "fetch"
FETCH_BYTES_MAX = 4 << 20
_PAUSE_S = 0.05


class PartitionReader:
    """Fetches from a cluster; gives up after `timeout_s` without progress."""

    def __init__(self, cluster: "Brokers", *, timeout_s: float) -> None:
        self._cluster = cluster
        self._timeout_s = timeout_s

    async def batches(
        self, starts: Mapping[int, int], ends: Mapping[int, int]
    ) -> AsyncIterator[list[LoggedBatch]]:
        """Yield the stored batches of each partition from its start to its end, as they arrive.

        The first batch of a partition may begin below its start. Raises LogUnavailable if the batches cannot
        be read now, also if they were pruned during the read.
        """
        positions = {partition: start for partition, start in starts.items() if start < ends[partition]}
        loop = asyncio.get_running_loop()
        progress_s = loop.time()
        fetching = loop.create_task(self._fetch_from_leaders(positions))
        try:
            while positions:
                chunk: list[LoggedBatch] = []
                for partition, fetched in (await fetching).items():
                    _collect_batches(partition, fetched.data, positions, ends[partition], chunk)
                if chunk:
                    progress_s = loop.time()
                elif loop.time() - progress_s > self._timeout_s:
                    raise LogUnavailable(f"{_format_partitions(positions)} cannot be read now")
                else:
                    await asyncio.sleep(_PAUSE_S)
                if positions:
                    fetching = loop.create_task(self._fetch_from_leaders(positions))
                if chunk:
                    yield chunk
        finally:
            fetching.cancel()

    async def _fetch_from_leaders(self, positions: Mapping[int, int]) -> dict[int, FetchResult]:
        """Send one fetch to each leader; return the results without an error."""
        by_node: defaultdict[int, dict[int, int]] = defaultdict(dict)
        for partition, position in positions.items():
            by_node[self._cluster.leader(partition)][partition] = position
        if by_node.pop(NO_NODE, None):
            self._cluster.refresh_soon()
        results: dict[int, FetchResult] = {}
        for answers in await asyncio.gather(
            *(self._fetch_from_leader(*request) for request in by_node.items())
        ):
            for partition, fetched in answers.items():
                if fetched.error_code == ErrorCode.NONE:
                    results[partition] = fetched
                elif fetched.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
                    raise LogUnavailable(f"{_format_partitions([partition])} was pruned while it was read")
                else:
                    reason = self._cluster.recreated_reason()
                    if reason is not None:
                        raise LogRefused(reason)
                    self._cluster.refresh_soon()
        return results

    async def _fetch_from_leader(self, node: int, positions: Mapping[int, int]) -> Mapping[int, FetchResult]:
        try:
            return await self._cluster.fetch(node, CHANNEL, positions, FETCH_BYTES_MAX)
        except NoResponse:
            self._cluster.refresh_soon()
            return {}


def _format_partitions(partitions: "Mapping[int, int] | list[int]") -> str:
    return "state partition " + ", ".join(map(str, partitions))


def _collect_batches(
    partition: int, data: bytes, positions: dict[int, int], end: int, chunk: list[LoggedBatch]
) -> None:
    """Append the complete batches of a response to the chunk, and advance the position past them."""
    at = 0
    while (size_bytes := batch_size_at(data, at)) is not None and at + size_bytes <= len(data):
        chunk.append(LoggedBatch(partition, data[at : at + size_bytes]))
        positions[partition] = next_offset_at(data, at)
        if positions[partition] >= end:
            del positions[partition]
            return
        at += size_bytes


def keep_valid_records(batch_bytes: bytes, fencing_filter: FencingFilter, start_offset: int) -> list[bytes]:
    """Remove ownership records and records of fenced owners from the next batch of a log; return the rest.

    Usually all records stay, and the batch is returned unchanged. If records are removed, each remaining
    record is encoded again at its own log offset. An owner never mixes valid and other records in one batch.
    Records below `start_offset` are ignored. Raises DecodeError.
    """
    kept: list[bytes] = []
    for batch in decode_batches(batch_bytes):
        if batch.is_control:
            continue
        accepts = fencing_filter.accepts
        records = [
            record
            for record in batch.records
            if record.offset >= start_offset and accepts(record) and not is_ownership_record(record)
        ]
        if len(records) == len(batch.records):
            kept.append(batch_bytes)
        else:
            kept.extend(_encode_record(record) for record in records)
    return kept


def _encode_record(record: LogRecord) -> bytes:
    return encode_batch(record.offset, record.timestamp_ms, [(record.key or b"", record.value)])
