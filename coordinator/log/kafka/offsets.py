"""Find the start and end offsets of state partitions; one request to a leader covers many partitions."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from coordinator.cluster.kafka.broker_results import ListedOffset
from coordinator.errors import LogUnavailable
from coordinator.log.kafka.partition_batcher import PartitionBatcher
from protocol.errors import ErrorCode, kafka_error

if TYPE_CHECKING:
    from coordinator.cluster.kafka.brokers import Brokers

_ListOffsets = Callable[[int, str, Sequence[int]], Awaitable[Mapping[int, ListedOffset]]]


class _OffsetRequest:
    """A query for an offset of one state partition."""

    size_bytes = 0

    def __init__(self, state_partition: int, deadline_s: float, answer: "asyncio.Future[int]") -> None:
        self.state_partition = state_partition
        self.deadline_s = deadline_s
        self.attempts = 0
        self.answer = answer


class OffsetFinder:
    """Finds one kind of offset, which `list_offsets` requests from a broker."""

    def __init__(
        self, cluster: "Brokers", channels: Sequence[str], list_offsets: _ListOffsets, *, timeout_s: float
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._timeout_s = timeout_s
        self._list_offsets = list_offsets
        self._batcher: PartitionBatcher[_OffsetRequest, ListedOffset] = PartitionBatcher(
            cluster,
            channels=channels,
            request_bytes_max=1,
            send=self._send_requests,
            handle_result=self._handle_listed_offset,
            on_no_response=lambda request: None,
            on_timeout=self._handle_timeout,
        )

    def find(self, state_partition: int) -> "asyncio.Future[int]":
        """Return a future of the offset, requested after this call.

        The future fails with LogUnavailable at the timeout.
        """
        answer: asyncio.Future[int] = self._loop.create_future()
        self._batcher.submit(_OffsetRequest(state_partition, self._loop.time() + self._timeout_s, answer))
        return answer

    def close(self) -> None:
        self._batcher.close()

    async def _send_requests(
        self, node: int, channel: str, requests: list[_OffsetRequest]
    ) -> Mapping[int, ListedOffset]:
        return await self._list_offsets(
            node, channel, sorted({request.state_partition for request in requests})
        )

    @staticmethod
    def _handle_listed_offset(request: _OffsetRequest, listed: ListedOffset) -> str | None:
        if listed.error_code != ErrorCode.NONE:
            return kafka_error(listed.error_code)
        if not request.answer.done():
            request.answer.set_result(listed.log_offset)
        return None

    @staticmethod
    def _handle_timeout(request: _OffsetRequest, why: str) -> None:
        if not request.answer.done():
            request.answer.set_exception(
                LogUnavailable(f"the offset of partition {request.state_partition} cannot be found: {why}")
            )
