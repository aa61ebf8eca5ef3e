"""Send items to the leaders of their state partitions in batches, and resend them until they have a result.

An item concerns one state partition. The number of items in flight is not limited, but the number of requests
is: each broker has a few channels. While all channels are busy, items collect and are sent together in the
next request. Therefore, an idle log sends at once and a busy one sends large requests, without a timer.

After a failure, the identical item is sent again, after a growing pause and a metadata refresh. The attempts
end when the item has a final result or its deadline has passed.
"""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from coordinator.cluster.kafka.broker_results import NO_NODE, NoResponse
from coordinator.errors import LogError

if TYPE_CHECKING:
    from coordinator.cluster.kafka.brokers import Brokers

_logger = logging.getLogger(__name__)

PAUSE_FIRST_S = 0.03
PAUSE_MAX_S = 1.0


class BatchItem(Protocol):
    """An item: its state partition, its size, its deadline (loop time), and the number of attempts."""

    state_partition: int
    deadline_s: float
    attempts: int

    @property
    def size_bytes(self) -> int: ...


ItemT = TypeVar("ItemT", bound=BatchItem)
ResultT = TypeVar("ResultT")


class PartitionBatcher(Generic[ItemT, ResultT]):
    """Sends one kind of item, such as appends.

    `send` sends several items to one broker and returns a result for each state partition; it raises
    NoResponse. `handle_result` handles an item's result and returns None, or why the item must be sent again.
    `on_no_response` records that an item without a response may have reached the broker. `on_timeout` ends an
    item whose deadline has passed.
    """

    def __init__(
        self,
        cluster: "Brokers",
        *,
        channels: Sequence[str],
        request_bytes_max: int,
        send: Callable[[int, str, list[ItemT]], Awaitable[Mapping[int, ResultT]]],
        handle_result: Callable[[ItemT, ResultT], str | None],
        on_no_response: Callable[[ItemT], None],
        on_timeout: Callable[[ItemT, str], None],
    ) -> None:
        self._cluster = cluster
        self._channels = tuple(channels)
        self._request_bytes_max = request_bytes_max
        self._send = send
        self._handle_result = handle_result
        self._on_no_response = on_no_response
        self._on_timeout = on_timeout
        self._loop = asyncio.get_running_loop()
        self._waiting: list[ItemT] = []
        self._free_channels: defaultdict[int, list[str]] = defaultdict(lambda: list(self._channels))
        self._send_is_scheduled = False
        self._requests: set[asyncio.Future[Mapping[int, ResultT]]] = set()
        self._pauses: dict[int, asyncio.TimerHandle] = {}

    def submit(self, item: ItemT) -> None:
        """Queue an item for the next request; `handle_result` is never called during this call."""
        self._waiting.append(item)
        if not self._send_is_scheduled:
            self._send_is_scheduled = True
            self._loop.call_soon(self._send_queued_items)

    def close(self) -> None:
        """Cancel all requests. Afterwards, neither `handle_result` nor `on_timeout` is called."""
        for pause in self._pauses.values():
            pause.cancel()
        for request in list(self._requests):
            request.cancel()

    def _send_queued_items(self) -> None:
        """Send the queued items to the brokers that have a free channel."""
        self._send_is_scheduled = False
        waiting, self._waiting = self._waiting, []
        by_node: defaultdict[int, list[ItemT]] = defaultdict(list)
        for item in waiting:
            node = self._cluster.leader(item.state_partition)
            if node == NO_NODE:
                self._resend_later(item, f"partition {item.state_partition} has no leader")
            else:
                by_node[node].append(item)
        for node, items in by_node.items():
            while items and self._free_channels[node]:
                items = self._send_request(node, items)
            self._waiting.extend(items)

    def _send_request(self, node: int, items: list[ItemT]) -> list[ItemT]:
        """Send as many items as fit into one request; return the rest."""
        count = size_bytes = 0
        for item in items:
            size_bytes += item.size_bytes
            if count and size_bytes > self._request_bytes_max:
                break
            count += 1
        sent, channel = items[:count], self._free_channels[node].pop()
        request = asyncio.ensure_future(self._send(node, channel, sent))
        self._requests.add(request)
        request.add_done_callback(partial(self._on_response, node, channel, sent))
        return items[count:]

    def _on_response(
        self,
        node: int,
        channel: str,
        items: list[ItemT],
        request: "asyncio.Future[Mapping[int, ResultT]]",
    ) -> None:
        self._requests.discard(request)
        if request.cancelled():
            return
        self._free_channels[node].append(channel)
        error = request.exception()
        if error is None:
            self._handle_results(items, request.result())
        else:
            if not isinstance(error, LogError):
                # If a response cannot be processed, its items are sent again, as after a missing response.
                _logger.error("a request to broker %d failed", node, exc_info=error)
            for item in items:
                if not isinstance(error, NoResponse) or error.sent:
                    self._on_no_response(item)
                self._resend_later(item, str(error))
        if self._waiting and not self._send_is_scheduled:
            self._send_queued_items()

    def _handle_results(self, items: list[ItemT], results: Mapping[int, ResultT]) -> None:
        for item in items:
            result = results.get(item.state_partition)
            why = (
                "the response has no result for the partition"
                if result is None
                else self._handle_result(item, result)
            )
            if why is not None:
                self._resend_later(item, why)

    def _resend_later(self, item: ItemT, why: str) -> None:
        """Send an item again after a pause, or call `on_timeout` after its deadline.

        In both cases, refresh the metadata, because the leader may have changed.
        """
        self._cluster.refresh_soon()
        if self._loop.time() >= item.deadline_s:
            self._on_timeout(item, why)
            return
        pause_s = min(PAUSE_FIRST_S * 2 ** min(item.attempts, 10), PAUSE_MAX_S)
        item.attempts += 1
        self._pauses[id(item)] = self._loop.call_later(pause_s, self._requeue_item, item)

    def _requeue_item(self, item: ItemT) -> None:
        del self._pauses[id(item)]
        self.submit(item)
