"""Takes items to the leaders of their state partitions, together and again until they are settled.

Theory of operation.  An item concerns one state partition; how many of them are under way is not limited,
how many requests are is: each broker has a few lanes, and while all of them are busy items collect and go
out together with the next one.  So an idle log sends at once and a busy one sends much at a time, without a
timer.  What did not get through goes again, the identical bytes, after a growing pause and a look at who
leads what, until it is settled or its time is over.
"""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Generic, Protocol, TypeVar

from coordinator.errors import LogError
from coordinator.kafka.cluster import NO_NODE, Cluster, NoAnswer

_logger = logging.getLogger(__name__)

PAUSE_FIRST_S = 0.03
PAUSE_MAX_S = 1.0


class Item(Protocol):
    """What is taken: for whom, how big, until when (loop time), and how often it was tried."""

    state_partition: int
    deadline_s: float
    attempts: int

    @property
    def size_bytes(self) -> int: ...


ItemT = TypeVar("ItemT", bound=Item)
AnswerT = TypeVar("AnswerT")


class Courier(Generic[ItemT, AnswerT]):
    """Delivers one kind of items.

    `send` asks one broker about several items and returns an answer per state partition; it raises NoAnswer.
    `settle` takes an item's answer and returns None, or why the item has to go again. `no_answer` notes that
    an item may have arrived all the same. `give_up` ends an item whose time is over.
    """

    def __init__(
        self,
        cluster: Cluster,
        *,
        lanes: Sequence[str],
        request_bytes_max: int,
        send: Callable[[int, str, list[ItemT]], Awaitable[Mapping[int, AnswerT]]],
        settle: Callable[[ItemT, AnswerT], str | None],
        no_answer: Callable[[ItemT], None],
        give_up: Callable[[ItemT, str], None],
    ) -> None:
        self._cluster = cluster
        self._lanes = tuple(lanes)
        self._request_bytes_max = request_bytes_max
        self._send = send
        self._settle = settle
        self._no_answer = no_answer
        self._give_up = give_up
        self._loop = asyncio.get_running_loop()
        self._waiting: list[ItemT] = []
        self._free: defaultdict[int, list[str]] = defaultdict(lambda: list(self._lanes))
        self._round_planned = False
        self._requests: set[asyncio.Task[None]] = set()
        self._pauses: dict[int, asyncio.TimerHandle] = {}

    def take(self, item: ItemT) -> None:
        """Take an item along with the next request; never settles it from inside this call."""
        self._waiting.append(item)
        if not self._round_planned:
            self._round_planned = True
            self._loop.call_soon(self._round)

    def close(self) -> None:
        """Stop; whoever closes has made sure that nothing is under way, or does not care any more."""
        for pause in self._pauses.values():
            pause.cancel()
        for request in self._requests:
            request.cancel()

    def _round(self) -> None:
        """Send what waits to those brokers that have a free lane."""
        self._round_planned = False
        waiting, self._waiting = self._waiting, []
        by_node: defaultdict[int, list[ItemT]] = defaultdict(list)
        for item in waiting:
            node = self._cluster.leader(item.state_partition)
            if node == NO_NODE:
                self._again(item, f"partition {item.state_partition} has no leader")
            else:
                by_node[node].append(item)
        for node, items in by_node.items():
            while items and self._free[node]:
                items = self._dispatch(node, items)
            self._waiting.extend(items)

    def _dispatch(self, node: int, items: list[ItemT]) -> list[ItemT]:
        """Send as many items as fit into one request; return the rest."""
        count = size_bytes = 0
        for item in items:
            size_bytes += item.size_bytes
            if count and size_bytes > self._request_bytes_max:
                break
            count += 1
        request = self._loop.create_task(self._ask(node, self._free[node].pop(), items[:count]))
        self._requests.add(request)
        request.add_done_callback(self._requests.discard)
        return items[count:]

    async def _ask(self, node: int, lane: str, items: list[ItemT]) -> None:
        try:
            answers = await self._send(node, lane, items)
        except Exception as error:
            if not isinstance(error, LogError):
                # An answer that nobody understands is as good as none; its items must not be forgotten.
                _logger.exception("a request to broker %d failed", node)
            for item in items:
                if not isinstance(error, NoAnswer) or error.sent:
                    self._no_answer(item)
                self._again(item, str(error))
        else:
            for item in items:
                answer = answers.get(item.state_partition)
                why = "the broker left it out" if answer is None else self._settle(item, answer)
                if why is not None:
                    self._again(item, why)
        finally:
            self._free[node].append(lane)
            if self._waiting and not self._round_planned:
                self._round()

    def _again(self, item: ItemT, why: str) -> None:
        """Let an item go again after a pause, or give it up."""
        if self._loop.time() >= item.deadline_s:
            self._give_up(item, why)
            return
        self._cluster.refresh_soon()
        pause_s = min(PAUSE_FIRST_S * 2 ** min(item.attempts, 10), PAUSE_MAX_S)
        item.attempts += 1
        self._pauses[id(item)] = self._loop.call_later(pause_s, self._resume, item)

    def _resume(self, item: ItemT) -> None:
        del self._pauses[id(item)]
        self.take(item)
