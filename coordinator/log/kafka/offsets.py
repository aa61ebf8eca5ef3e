"""Find the start and end offsets of state partitions; one request to a leader covers many partitions."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from coordinator.cluster.kafka.broker_results import ListedOffset
from coordinator.errors import LogUnavailable
from coordinator.log.kafka.partition_batcher import PartitionBatcher
from protocol.errors import ErrorCode

if TYPE_CHECKING:
    from coordinator.cluster.kafka.brokers import Brokers

_Ask = Callable[[int, str, Sequence[int]], Awaitable[Mapping[int, ListedOffset]]]


class _OffsetRequest:
    """A query for an offset of one state partition."""

    size_bytes = 0

    def __init__(self, state_partition: int, deadline_s: float, answer: "asyncio.Future[int]") -> None:
        self.state_partition = state_partition
        self.deadline_s = deadline_s
        self.attempts = 0
        self.answer = answer


class OffsetFinder:
    """Finds one kind of offset, which `ask` requests from a broker."""

    def __init__(self, cluster: "Brokers", channels: Sequence[str], ask: _Ask, *, timeout_s: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._timeout_s = timeout_s
        self._ask = ask
        self._batcher: PartitionBatcher[_OffsetRequest, ListedOffset] = PartitionBatcher(
            cluster,
            channels=channels,
            request_bytes_max=1,
            send=self._send_requests,
            settle=self._handle_listed_offset,
            no_answer=lambda question: None,
            give_up=self._give_up,
        )

    def find(self, state_partition: int) -> "asyncio.Future[int]":
        """Return a future of the offset, requested after this call.

        It fails with LogUnavailable at the timeout.
        """
        answer: asyncio.Future[int] = self._loop.create_future()
        self._batcher.submit(_OffsetRequest(state_partition, self._loop.time() + self._timeout_s, answer))
        return answer

    def close(self) -> None:
        """Cancel the requests in flight."""
        self._batcher.close()

    async def _send_requests(
        self, node: int, channel: str, questions: list[_OffsetRequest]
    ) -> Mapping[int, ListedOffset]:
        return await self._ask(node, channel, sorted({question.state_partition for question in questions}))

    @staticmethod
    def _handle_listed_offset(question: _OffsetRequest, listed: ListedOffset) -> str | None:
        if listed.error_code != ErrorCode.NONE:
            return f"Kafka's error {listed.error_code}"
        if not question.answer.done():
            question.answer.set_result(listed.log_offset)
        return None

    @staticmethod
    def _give_up(question: _OffsetRequest, why: str) -> None:
        if not question.answer.done():
            question.answer.set_exception(
                LogUnavailable(f"the end of partition {question.state_partition} cannot be found: {why}")
            )
