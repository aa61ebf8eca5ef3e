"""Ask several brokers for metadata, and keep the newest answer.

A broker that is cut off from the controller answers at once, with old leaders.  If it were asked alone, its
answers would hide the new leaders for ever.  So each refresh asks several brokers.  A refresh that follows an
error asks others than the last one.  The first answer ends a refresh, because a silent broker must not delay
it; later answers count, too.
"""

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Iterable

from coordinator.errors import LogUnavailable
from coordinator.kafka.cluster import NO_NODE, NoResponse, UnsupportedApi
from coordinator.kafka.metadata import ClusterMetadata, NewestTopic
from protocol.errors import ErrorCode
from protocol.state_records import topic_id_text

_logger = logging.getLogger(__name__)

BROKERS_ASKED = 3
# If none of these answers within this time, others are asked in addition.
_FIRST_ANSWER_S = 1.0
# How long a refresh that wants several answers waits for the others after the first one.
_LATER_ANSWERS_S = 1.0


class MetadataCache:
    """The metadata of a cluster and of one topic, as several brokers report it. Used on one event loop.

    `addresses` has the brokers by node. `unreachable_reason` says why no broker answered, if none did.
    """

    def __init__(
        self,
        topic: str | None,
        ask: Callable[[int], Awaitable[ClusterMetadata]],
        ask_bootstrap_servers: Callable[[], Awaitable[ClusterMetadata]],
    ) -> None:
        """Prepare. `ask` raises NoResponse, and `ask_bootstrap_servers` LogUnavailable if none answers."""
        self._topic_name = topic
        self._ask = ask
        self._ask_bootstrap_servers = ask_bootstrap_servers
        self.topic = NewestTopic()
        self.addresses: dict[int, tuple[str, int]] = {}
        self.unreachable_reason: str | None = None
        self._recreation_is_logged = False
        self._last_responder = NO_NODE
        # The place of the first broker to ask. Each process begins elsewhere, to spread the requests.
        self._first = random.randrange(1 << 16)
        self._asking: dict[int, asyncio.Task[ClusterMetadata | None]] = {}

    async def close(self) -> None:
        """Stop asking."""
        asking = list(self._asking.values())
        for task in asking:
            task.cancel()
        await asyncio.gather(*asking, return_exceptions=True)
        # A connection that was being made is closed by the next turn of the loop.
        await asyncio.sleep(0)

    def leader(self, partition: int) -> int:
        """Return the leader of a partition of the topic by the newest leader epoch, NO_NODE if unknown."""
        known = self.topic.partitions.get(partition)
        return NO_NODE if known is None else known.leader

    def recreated_reason(self) -> str | None:
        """Return why the topic cannot be used, if it was deleted and created again since it was pinned."""
        new_topic_id = self.topic.new_topic_id()
        if new_topic_id is None:
            return None
        return (
            f"Topic {self._topic_name} was deleted and created again: its topic id was "
            f"{topic_id_text(self.topic.topic_id)} and is {topic_id_text(new_topic_id)}. The new topic is "
            f"not used. Restart this process to begin with the state in the new topic."
        )

    def nodes_best_first(self) -> list[int]:
        """Return the brokers; first the one that answered last, if its metadata was the newest."""
        return sorted(self.addresses, key=lambda node: node != self._last_responder)

    def note_response(self, node: int) -> None:
        """Note that a broker answers requests."""
        self._last_responder = node

    async def refresh(
        self, *, wait_for_others: bool = False, ask_others: bool = False
    ) -> list[ClusterMetadata]:
        """Ask several brokers, and the bootstrap servers if no broker answers; return the first answers.

        With `wait_for_others` it also waits for the later answers, but not long; with `ask_others` it does
        not begin with the same brokers as the last time.  Raises LogUnavailable if none answers, LogRefused
        if a bootstrap server does not let us in.
        """
        self._first += BROKERS_ASKED if ask_others else 0
        nodes = self._nodes_to_ask()
        asked: set[asyncio.Task[ClusterMetadata | None]] = set()
        for first in range(0, len(nodes), BROKERS_ASKED):
            asked |= {self._begin(node) for node in nodes[first : first + BROKERS_ASKED]}
            is_last = first + BROKERS_ASKED >= len(nodes)
            if await _first_answer(asked, None if is_last else _FIRST_ANSWER_S):
                if wait_for_others:
                    await asyncio.wait(asked, timeout=_LATER_ANSWERS_S)
                return _answers(asked)
        try:
            metadata = await self._ask_bootstrap_servers()
        except LogUnavailable as error:
            self.unreachable_reason = str(error)
            raise
        self._take(NO_NODE, metadata)
        return [metadata]

    def _nodes_to_ask(self) -> list[int]:
        """Return all brokers in the order in which they are asked now."""
        nodes = sorted(self.addresses)
        first = self._first % len(nodes) if nodes else 0
        return nodes[first:] + nodes[:first]

    def _begin(self, node: int) -> "asyncio.Task[ClusterMetadata | None]":
        """Ask a broker, unless it was asked and has not answered yet."""
        task = self._asking.get(node)
        if task is None:
            task = self._asking[node] = asyncio.create_task(self._inquire(node))
            task.add_done_callback(lambda _: self._asking.pop(node, None))
        return task

    async def _inquire(self, node: int) -> ClusterMetadata | None:
        try:
            metadata = await self._ask(node)
        except (NoResponse, UnsupportedApi):
            return None
        self._take(node, metadata)
        return metadata

    def _take(self, node: int, metadata: ClusterMetadata) -> None:
        """Take what a broker reports, except where another broker has reported something newer."""
        is_newest = True
        for topic in metadata.topics:
            if topic.name == self._topic_name and topic.error_code == ErrorCode.NONE:
                is_newest = self.topic.update(node, topic)
        if is_newest or not self.addresses:
            self.addresses, self._last_responder = dict(metadata.brokers), node
        elif node == self._last_responder:
            self._last_responder = NO_NODE
        if self.unreachable_reason is not None:
            _logger.info("Kafka is back")
            self.unreachable_reason = None
        reason = self.recreated_reason()
        if reason is not None and not self._recreation_is_logged:
            _logger.error("%s", reason)
        self._recreation_is_logged = reason is not None


async def _first_answer(
    asked: "Iterable[asyncio.Task[ClusterMetadata | None]]", timeout_s: float | None
) -> bool:
    """Wait until a broker has answered; return False if none does, or none within the time."""
    waiting = set(asked)
    try:
        async with asyncio.timeout(timeout_s):
            while waiting:
                done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                if any(task.result() is not None for task in done):
                    return True
    except TimeoutError:
        pass
    return False


def _answers(asked: "Iterable[asyncio.Task[ClusterMetadata | None]]") -> list[ClusterMetadata]:
    results = [task.result() for task in asked if task.done()]
    return [metadata for metadata in results if metadata is not None]
